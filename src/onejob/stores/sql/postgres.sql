-- Every statement of the PostgreSQL store, whole. Parameters are numbered and cast, so that any driver can
-- send them; rows go in as one JSON array, keys as one run of 32 bytes each and their number.
-- Columns of onejob_jobs are always read in the order of the table. Lookups are LATERAL: one index probe per
-- key, whatever the planner believes about the size of the table: a plan that was made while it was empty is
-- kept when it has grown. LIMIT 1 makes sure of it where the planner would rather join, and so does a condition
-- that is always true (id || '' = id) where there can be no LIMIT: it makes one row of the 100 that are expected.

-- name: schema_version
SELECT max(version) FROM onejob_schema;

-- name: record_schema_version
INSERT INTO onejob_schema (version, applied_at) VALUES ($1::bigint, $2::bigint);

-- name: known_tables
SELECT relname FROM pg_class
WHERE relkind IN ('r', 'p') AND relname LIKE 'onejob\_%' AND pg_table_is_visible(oid);

-- name: create_schema_table
CREATE TABLE IF NOT EXISTS onejob_schema (version BIGINT PRIMARY KEY, applied_at BIGINT NOT NULL);

-- name: migrating
-- One process at a time makes or changes the tables; the others wait and find it done.
SELECT pg_advisory_xact_lock(7310563241);

-- name: backend
-- A pooler tells its clients another number than this.
SELECT pg_backend_pid();

-- name: no_bitmaps
SET enable_bitmapscan = off;

-- name: brief_locks
SELECT set_config('lock_timeout', $1::text, false);

-- name: listen
LISTEN onejob;

-- name: clock
SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint;

-- name: server_settings
-- What the doctor looks at.
SELECT current_setting('server_version'), current_setting('server_version_num')::bigint, pg_is_in_recovery(),
    current_setting('fsync'), current_setting('synchronous_commit'), current_setting('full_page_writes'),
    current_setting('autovacuum'), current_setting('server_encoding'),
    current_setting('default_transaction_read_only'), pg_backend_pid();

-- name: installation
SELECT id FROM onejob_installation;

-- name: transaction_id
-- Who writes; nobody as long as nothing was locked or written.
SELECT pg_current_xact_id_if_assigned()::xid::text;

-- name: begin
BEGIN ISOLATION LEVEL READ COMMITTED;

-- name: commit
COMMIT;

-- name: rollback
ROLLBACK;

-- name: ping
SELECT 1;

-- name: forget
-- Leave nothing of one handler's session to the next. Several statements, so it cannot be prepared.
CLOSE ALL; UNLISTEN *; RESET ALL; DISCARD TEMP; SELECT pg_advisory_unlock_all();

-- ── admitting ───────────────────────────────────────────────────────────────────────────────────────

-- name: admit
-- New jobs whose keys nobody holds, in one statement and one commit. One row comes back for each job that
-- could not be inserted: who holds its key, who waits behind, and whether it is there itself, as this
-- statement's snapshot shows them. It shows nobody if the key changed hands while the statement ran. Jobs come
-- as JSON, since the fewer columns a statement has, the sooner it starts, and most say only what they have.
WITH wanted AS MATERIALIZED (
    SELECT * FROM json_populate_recordset(NULL::onejob_jobs, $1::text::json)
),
inserted AS (
    INSERT INTO onejob_jobs (
        id, namespace, task, queue, state, priority, run_at, place, created_at, args, meta,
        payload_digest, retry, chain_id, timeout, attempt, started_at, finished_at, key, held_key,
        next_key, holds, traits, within, held_at, holds_until, latest_at, version, chain_index,
        parent_id, superseded_by, reason, token, worker, lease_until, cancel_requested, errors, result,
        progress, expires_at, partition, replays, blockers, arrived, following
    )
    SELECT
        id, namespace, task, queue, state, priority, run_at, place, created_at, args, meta,
        payload_digest, retry, chain_id, timeout, coalesce(attempt, 0), started_at, finished_at, key, held_key,
        next_key, holds, traits, within, held_at, holds_until, latest_at, version, chain_index,
        parent_id, superseded_by, reason, coalesce(token, 0), worker, lease_until,
        coalesce(cancel_requested, false), coalesce(errors, '[]'), result, progress, expires_at, partition,
        coalesce(replays, 0), blockers, arrived, following
    FROM wanted ORDER BY held_key
    ON CONFLICT DO NOTHING
    RETURNING id
),
refused AS MATERIALIZED (
    SELECT id, held_key FROM wanted WHERE id NOT IN (SELECT id FROM inserted)
)
SELECT
    refused.id,
    (SELECT row_to_json(job)::text FROM onejob_jobs AS job WHERE job.held_key = refused.held_key),
    (SELECT row_to_json(job)::text FROM onejob_jobs AS job WHERE job.next_key = refused.held_key),
    (SELECT true FROM onejob_jobs AS job WHERE job.id = refused.id)
FROM refused;

-- name: admit_plain
-- The same for one job that has only what most jobs have when they are new. Its columns are the parameters:
-- reading them from JSON takes over a quarter of the time. If it could not be inserted, the rows of whoever stands for
-- its key come back, and its own if it is there; one of nulls if nobody is seen.
WITH inserted AS (
    INSERT INTO onejob_jobs (
        id, namespace, task, queue, state, priority, run_at, place, created_at, args, meta, payload_digest,
        retry, chain_id, key, held_key, holds, traits, held_at, chain_index, parent_id, following,
        attempt, token, cancel_requested, errors
    )
    VALUES (
        $1::text, $2::text, $3::text, $4::text, $5::text, $6::bigint, $7::bigint, $8::bigint, $9::bigint,
        $10::text, $11::text, $12::bytea, $13::text, $14::text, $15::bytea, $16::bytea, $17::bigint,
        $18::bigint, $19::bigint, $20::bigint, $21::text, $22::text,
        0, 0, false, '[]'
    )
    ON CONFLICT DO NOTHING
    RETURNING true
)
SELECT standing.* FROM (SELECT 1 WHERE NOT EXISTS (SELECT 1 FROM inserted)) AS refused
LEFT JOIN LATERAL (
    SELECT * FROM onejob_jobs WHERE held_key = $16::bytea
    UNION ALL
    SELECT * FROM onejob_jobs WHERE next_key = $16::bytea
    UNION ALL
    SELECT * FROM onejob_jobs WHERE id = $1::text
) AS standing ON true;

-- ── deciding under locks: a statement that waited keeps its old snapshot, so lock, then read in the next ──

-- name: lock_jobs
-- Jobs that are named by their ids, against everybody.
SELECT locked.*
FROM (SELECT value FROM json_array_elements_text($1::text::json) ORDER BY value) AS named
CROSS JOIN LATERAL (SELECT * FROM onejob_jobs WHERE id = named.value FOR UPDATE) AS locked;

-- name: lock_predecessors
-- Whoever a job waits behind, before the job itself: they would lock in this order, too.
SELECT locked.id
FROM (SELECT value FROM json_array_elements_text($1::text::json) ORDER BY value) AS named
CROSS JOIN LATERAL (
    SELECT next_key FROM onejob_jobs WHERE id = named.value AND next_key IS NOT NULL LIMIT 1
) AS waiting
CROSS JOIN LATERAL (SELECT id FROM onejob_jobs WHERE held_key = waiting.next_key FOR KEY SHARE) AS locked;

-- name: lock_free_jobs
-- The same, leaving out those that somebody else has locked: they are waited for one by one.
SELECT locked.*
FROM (SELECT value FROM json_array_elements_text($1::text::json) ORDER BY value) AS named
CROSS JOIN LATERAL (SELECT * FROM onejob_jobs WHERE id = named.value FOR UPDATE SKIP LOCKED) AS locked;

-- name: keys_of
-- A key is its job's for ever, so this is true whoever has locked the job.
SELECT found.id, found.key FROM json_array_elements_text($1::text::json) AS named
CROSS JOIN LATERAL (SELECT id, key FROM onejob_jobs WHERE id = named.value LIMIT 1) AS found;

-- name: lock_jobs_alone
-- Jobs of which only what is theirs alone will change: those who rely on their hold are not in the way.
SELECT locked.*
FROM (SELECT value FROM json_array_elements_text($1::text::json) ORDER BY value) AS named
CROSS JOIN LATERAL (SELECT * FROM onejob_jobs WHERE id = named.value FOR NO KEY UPDATE) AS locked;

-- name: lock_untouched
-- Jobs whose runs end, if nobody relies on any of them at this moment; else this fails.
SELECT count(*)
FROM (SELECT value FROM json_array_elements_text($1::text::json) ORDER BY value) AS named
CROSS JOIN LATERAL (SELECT id FROM onejob_jobs WHERE id = named.value FOR UPDATE NOWAIT) AS locked;

-- name: lock_holders
-- Running holders of keys: they may renew their lease meanwhile, but not end.
WITH keys AS MATERIALIZED (
    SELECT substring($1::bytea FROM i * 32 + 1 FOR 32) AS key FROM generate_series(0, $2::int - 1) AS i
),
named AS MATERIALIZED (
    SELECT standing.id FROM keys CROSS JOIN LATERAL (
        SELECT id FROM onejob_jobs WHERE held_key = keys.key LIMIT 1
    ) AS standing
)
SELECT locked.id FROM (SELECT id FROM named ORDER BY id) AS named CROSS JOIN LATERAL (
    SELECT id FROM onejob_jobs
    WHERE id = named.id AND state || '' = 'active' FOR KEY SHARE -- not by the index of all that is active
) AS locked;

-- name: lock_standing
-- Whoever else stands for keys, against everybody.
WITH keys AS MATERIALIZED (
    SELECT substring($1::bytea FROM i * 32 + 1 FOR 32) AS key FROM generate_series(0, $2::int - 1) AS i
),
named AS MATERIALIZED (
    SELECT standing.id FROM keys CROSS JOIN LATERAL (
        SELECT id FROM onejob_jobs WHERE held_key = keys.key LIMIT 1
    ) AS standing
    UNION
    SELECT standing.id FROM keys CROSS JOIN LATERAL (
        SELECT id FROM onejob_jobs WHERE next_key = keys.key LIMIT 1
    ) AS standing
)
SELECT locked.id FROM (SELECT id FROM named ORDER BY id) AS named CROSS JOIN LATERAL (
    SELECT id FROM onejob_jobs WHERE id = named.id AND state <> 'active' FOR UPDATE
) AS locked;

-- name: lock_successors
-- Who waits behind holders that are locked already, as they are then.
WITH keys AS MATERIALIZED (
    SELECT substring($1::bytea FROM i * 32 + 1 FOR 32) AS key FROM generate_series(0, $2::int - 1) AS i
)
SELECT locked.* FROM (SELECT key FROM keys ORDER BY key) AS keys CROSS JOIN LATERAL (
    SELECT * FROM onejob_jobs WHERE next_key = keys.key FOR UPDATE
) AS locked;

-- name: lock_marks
-- The marks of keys, as they are then.
WITH keys AS MATERIALIZED (
    SELECT substring($1::bytea FROM i * 32 + 1 FOR 32) AS key FROM generate_series(0, $2::int - 1) AS i
)
SELECT locked.* FROM (SELECT key FROM keys ORDER BY key) AS keys CROSS JOIN LATERAL (
    SELECT key, version, job, void, touched_at, prior_version, prior_job
    FROM onejob_marks WHERE onejob_marks.key = keys.key FOR UPDATE
) AS locked;

-- ── reading ─────────────────────────────────────────────────────────────────────────────────────────

-- name: job
SELECT * FROM onejob_jobs WHERE id = $1::text;

-- name: jobs
SELECT found.* FROM json_array_elements_text($1::text::json) AS named CROSS JOIN LATERAL (
    SELECT * FROM onejob_jobs WHERE id = named.value LIMIT 1
) AS found;

-- name: standing
-- The holder of a key and the one that waits behind it.
SELECT * FROM onejob_jobs WHERE held_key = $1::bytea
UNION ALL
SELECT * FROM onejob_jobs WHERE next_key = $1::bytea;

-- name: standing_for_all
WITH keys AS MATERIALIZED (
    SELECT substring($1::bytea FROM i * 32 + 1 FOR 32) AS key FROM generate_series(0, $2::int - 1) AS i
)
SELECT standing.* FROM keys CROSS JOIN LATERAL (
    SELECT * FROM onejob_jobs WHERE held_key = keys.key LIMIT 1
) AS standing
UNION ALL
SELECT standing.* FROM keys CROSS JOIN LATERAL (
    SELECT * FROM onejob_jobs WHERE next_key = keys.key LIMIT 1
) AS standing;

-- name: standing_besides
-- The same, without those that have been read already.
WITH keys AS MATERIALIZED (
    SELECT substring($1::bytea FROM i * 32 + 1 FOR 32) AS key FROM generate_series(0, $2::int - 1) AS i
),
standing AS (
    SELECT standing.* FROM keys CROSS JOIN LATERAL (
        SELECT * FROM onejob_jobs WHERE held_key = keys.key LIMIT 1
    ) AS standing
    UNION ALL
    SELECT standing.* FROM keys CROSS JOIN LATERAL (
        SELECT * FROM onejob_jobs WHERE next_key = keys.key LIMIT 1
    ) AS standing
)
SELECT * FROM standing WHERE id NOT IN (SELECT json_array_elements_text($3::text::json));

-- name: marks
WITH keys AS MATERIALIZED (
    SELECT substring($1::bytea FROM i * 32 + 1 FOR 32) AS key FROM generate_series(0, $2::int - 1) AS i
)
SELECT mark.* FROM keys CROSS JOIN LATERAL (
    SELECT key, version, job, void, touched_at, prior_version, prior_job
    FROM onejob_marks WHERE onejob_marks.key = keys.key LIMIT 1
) AS mark;

-- name: depth
-- How many jobs wait in a queue, by the indexes that there are.
SELECT (SELECT count(*) FROM onejob_jobs WHERE state = 'available' AND namespace = $1::text AND queue = $2::text)
    + (
        SELECT count(*) FROM onejob_jobs
        WHERE state IN ('scheduled', 'retryable') AND run_at > -9223372036854775807
            AND namespace = $1::text AND queue = $2::text
    ) + (
        SELECT count(*) FROM onejob_jobs
        WHERE state = 'pending' AND next_key > '' AND namespace = $1::text AND queue = $2::text
    ) + (
        SELECT count(*) FROM onejob_jobs
        WHERE state = 'pending' AND blockers IS NOT NULL AND id > '' AND next_key IS NULL
            AND namespace = $1::text AND queue = $2::text
    );

-- name: next_due
SELECT min(run_at) FROM onejob_jobs WHERE state IN ('scheduled', 'retryable') AND namespace = $1::text;

-- name: find
SELECT * FROM onejob_jobs
WHERE ($1::text IS NULL OR namespace = $1::text)
    AND ($2::text IS NULL OR state IN (SELECT json_array_elements_text($2::text::json)))
    AND ($3::text IS NULL OR queue = $3::text)
    AND ($4::text IS NULL OR task = $4::text)
    AND (NOT $5::boolean OR held_key IS NOT NULL OR next_key IS NOT NULL)
    AND ($6::text IS NULL OR chain_id = $6::text)
ORDER BY CASE WHEN $7::boolean THEN id END DESC, CASE WHEN NOT $7::boolean THEN id END
LIMIT $8::bigint OFFSET $9::bigint;

-- name: find_newest
-- The same without a sort, for the page that everybody opens first.
SELECT * FROM onejob_jobs WHERE ($1::text IS NULL OR namespace = $1::text)
ORDER BY id DESC LIMIT $2::bigint OFFSET $3::bigint;

-- name: find_by_key
-- Who holds it, who waits behind, and all who have let it go, which is what the index by key has.
SELECT * FROM (
    SELECT * FROM onejob_jobs WHERE held_key = $1::bytea
    UNION ALL
    SELECT * FROM onejob_jobs WHERE next_key = $1::bytea
    UNION ALL
    SELECT * FROM onejob_jobs WHERE key = $1::bytea AND held_key IS NULL AND next_key IS NULL
) AS named
WHERE ($2::text IS NULL OR state IN (SELECT json_array_elements_text($2::text::json)))
    AND ($3::text IS NULL OR queue = $3::text)
    AND ($4::text IS NULL OR task = $4::text)
    AND (NOT $5::boolean OR held_key IS NOT NULL OR next_key IS NOT NULL)
ORDER BY CASE WHEN $6::boolean THEN id END DESC, CASE WHEN NOT $6::boolean THEN id END
LIMIT $7::bigint OFFSET $8::bigint;

-- name: find_expired
SELECT * FROM onejob_jobs WHERE state = 'active' AND lease_until <= $1::bigint
ORDER BY lease_until LIMIT $2::bigint;

-- name: find_late
SELECT * FROM onejob_jobs
WHERE expires_at <= $1::bigint AND state IN ('scheduled', 'available', 'pending', 'retryable')
ORDER BY expires_at, id LIMIT $2::bigint OFFSET $3::bigint;

-- name: find_ended
-- Jobs that ended in a state by a time, beyond a time and an id. Tasks are in the index: others cost no row.
SELECT * FROM onejob_jobs
WHERE namespace = $1::text AND state = $2::text AND finished_at < $3::bigint
    AND finished_at >= $4::bigint AND (finished_at > $4::bigint OR id > $5::text)
    AND ($6::text IS NULL OR task = $6::text)
    AND task <> ALL (ARRAY(SELECT json_array_elements_text($7::text::json)))
ORDER BY finished_at, id LIMIT $8::bigint OFFSET $9::bigint;

-- name: find_ended_newest
-- The same the other way round, with one bound.
SELECT * FROM onejob_jobs
WHERE namespace = $1::text AND state = $2::text
    AND finished_at <= $3::bigint AND (finished_at < $3::bigint OR id < $4::text)
    AND ($5::text IS NULL OR task = $5::text)
    AND task <> ALL (ARRAY(SELECT json_array_elements_text($6::text::json)))
ORDER BY finished_at DESC, id DESC LIMIT $7::bigint OFFSET $8::bigint;

-- name: find_returning
-- A task's dead letters whose time to come back is near; 256 is Trait.RETURNS.
SELECT * FROM onejob_jobs
WHERE namespace = $1::text AND task = $2::text AND state = 'discarded' AND traits & 256 <> 0
    AND run_at <= $3::bigint
ORDER BY run_at, id LIMIT $4::bigint OFFSET $5::bigint;

-- name: find_stranded
SELECT waiting.* FROM onejob_jobs AS waiting
LEFT JOIN onejob_jobs AS holder ON holder.held_key = waiting.next_key
WHERE waiting.next_key IS NOT NULL AND waiting.state = 'pending'
    AND (holder.id IS NULL OR holder.finished_at IS NOT NULL)
LIMIT $1::bigint;

-- name: find_awaiting
SELECT found.* FROM (
    SELECT DISTINCT job_id FROM json_array_elements_text($1::text::json) AS named
    CROSS JOIN LATERAL (SELECT job_id FROM onejob_waits WHERE chain_id = named.value) AS waiting
) AS waiting
CROSS JOIN LATERAL (
    SELECT * FROM onejob_jobs WHERE id = waiting.job_id AND finished_at IS NULL LIMIT 1
) AS found
ORDER BY CASE WHEN $2::boolean THEN id END DESC, CASE WHEN NOT $2::boolean THEN id END
LIMIT $3::bigint OFFSET $4::bigint;

-- name: find_blocked
SELECT * FROM onejob_jobs
WHERE state = 'pending' AND blockers IS NOT NULL
ORDER BY CASE WHEN $1::boolean THEN id END DESC, CASE WHEN NOT $1::boolean THEN id END
LIMIT $2::bigint OFFSET $3::bigint;

-- name: tails
SELECT found.* FROM json_array_elements_text($1::text::json) AS named CROSS JOIN LATERAL (
    SELECT * FROM onejob_jobs WHERE id = coalesce(
        (
            SELECT id FROM onejob_jobs WHERE chain_id = named.value AND chain_index > 0
            ORDER BY chain_index DESC LIMIT 1
        ),
        named.value
    ) LIMIT 1
) AS found;

-- name: settings
SELECT name, value FROM onejob_settings WHERE namespace = $1::text AND kind = $2::text;

-- name: put_setting
INSERT INTO onejob_settings (namespace, kind, name, value) VALUES ($1::text, $2::text, $3::text, $4::bytea)
ON CONFLICT (namespace, kind, name) DO UPDATE SET value = excluded.value;

-- name: drop_setting
DELETE FROM onejob_settings WHERE namespace = $1::text AND kind = $2::text AND name = $3::text;

-- name: counts
SELECT queue, task, state, count(*) FROM onejob_jobs WHERE namespace = $1::text GROUP BY queue, task, state;

-- name: keys_waiting
SELECT count(DISTINCT coalesce(held_key, next_key)) FROM onejob_jobs
WHERE namespace = $1::text AND (held_key IS NOT NULL OR next_key IS NOT NULL)
    AND state IN ('scheduled', 'available', 'pending', 'retryable');

-- name: tallies
SELECT namespace, task, outcome, job_id, sum(count)::bigint, max(last_at) FROM onejob_tallies
WHERE namespace = $1::text
GROUP BY namespace, task, outcome, job_id ORDER BY namespace, task, outcome, job_id;

-- ── leasing ─────────────────────────────────────────────────────────────────────────────────────────

-- name: timed_due
SELECT * FROM onejob_jobs WHERE state IN ('scheduled', 'retryable') AND run_at <= $1::bigint
ORDER BY run_at LIMIT $2::bigint FOR UPDATE SKIP LOCKED;

-- name: available_in_queue
SELECT * FROM onejob_jobs
WHERE state = 'available' AND namespace = $1::text AND queue = $2::text
    AND task = ANY (ARRAY(SELECT json_array_elements_text($3::text::json)))
    AND NOT EXISTS (
        SELECT 1 FROM onejob_settings WHERE namespace = $1::text AND kind = 'paused' AND name = $2::text
    )
ORDER BY priority DESC, run_at, place LIMIT $4::bigint FOR UPDATE OF onejob_jobs SKIP LOCKED;

-- name: anything_startable
-- Whether any queue has both a job and a place for it, or anything becomes due by time; queues come as an
-- object of names and limits.
SELECT EXISTS (
    SELECT 1 FROM onejob_jobs WHERE state IN ('scheduled', 'retryable') AND run_at <= $2::bigint
) OR EXISTS (
    SELECT 1 FROM json_each_text($3::text::json) AS wanted
    WHERE (
        SELECT true FROM onejob_jobs
        WHERE state = 'available' AND namespace = $1::text AND queue = wanted.key
        ORDER BY priority DESC, run_at, place LIMIT 1 -- by the index: those at the table's beginning have ended
    ) AND (wanted.value IS NULL OR wanted.value::bigint > (
        SELECT count(*) FROM (
            SELECT 1 FROM onejob_jobs
            WHERE state = 'active' AND namespace = $1::text AND queue = wanted.key
            ORDER BY lease_until LIMIT wanted.value::bigint
        ) AS running
    ))
);

-- name: available_in_limit
-- The same for a queue with a limit, which is locked: no more than there is room for.
SELECT * FROM onejob_jobs
WHERE state = 'available' AND namespace = $1::text AND queue = $2::text
    AND task = ANY (ARRAY(SELECT json_array_elements_text($3::text::json)))
    AND NOT EXISTS (
        SELECT 1 FROM onejob_settings WHERE namespace = $1::text AND kind = 'paused' AND name = $2::text
    )
ORDER BY priority DESC, run_at, place
LIMIT (
    SELECT greatest(0, least($4::bigint, $5::bigint - count(*))) FROM (
        SELECT 1 FROM onejob_jobs
        WHERE state = 'active' AND namespace = $1::text AND queue = $2::text
        ORDER BY lease_until LIMIT $5::bigint -- in order, for only such a scan remembers which entries are dead
    ) AS running
)
FOR UPDATE OF onejob_jobs SKIP LOCKED;

-- name: available_in_shares
-- The best jobs of every partition that has room: one look per partition, however long the others' lines are.
WITH RECURSIVE share (name) AS (
    SELECT min(partition) FROM onejob_jobs
    WHERE state = 'available' AND namespace = $1::text AND queue = $2::text AND partition IS NOT NULL
    UNION ALL
    SELECT (
        SELECT min(partition) FROM onejob_jobs
        WHERE state = 'available' AND namespace = $1::text AND queue = $2::text AND partition > share.name
    ) FROM share WHERE share.name IS NOT NULL
),
heads AS (
    SELECT head.* FROM share CROSS JOIN LATERAL (
        SELECT id, priority, run_at, place FROM onejob_jobs
        WHERE state = 'available' AND namespace = $1::text AND queue = $2::text AND partition = share.name
            AND task = ANY (ARRAY(SELECT json_array_elements_text($3::text::json)))
        ORDER BY priority DESC, run_at, place
        LIMIT CASE WHEN share.name = '' THEN $6::bigint ELSE $5::bigint END
    ) AS head
    WHERE share.name NOT IN (SELECT json_array_elements_text($4::text::json))
)
SELECT job.* FROM (SELECT * FROM heads ORDER BY priority DESC, run_at, place LIMIT $6::bigint) AS head
CROSS JOIN LATERAL (
    SELECT * FROM onejob_jobs WHERE id = head.id AND state || '' = 'available' FOR UPDATE SKIP LOCKED
) AS job
ORDER BY head.priority DESC, head.run_at, head.place;

-- name: lock_queue
-- A queue with a limit is counted and filled by one worker at a time.
SELECT pg_advisory_xact_lock(hashtextextended('onejob queue ' || $1::text || ' ' || $2::text, 0));

-- name: active_in_queue
SELECT count(*) FROM onejob_jobs WHERE state = 'active' AND namespace = $1::text AND queue = $2::text;

-- name: active_in_shares
SELECT partition, count(*) FROM onejob_jobs
WHERE state = 'active' AND namespace = $1::text AND queue = $2::text AND partition > '' GROUP BY partition;

-- name: forget_starts
DELETE FROM onejob_starts WHERE namespace = $1::text AND queue = $2::text AND at <= $3::bigint;

-- name: starts_in_queue
SELECT count(*) FROM onejob_starts WHERE namespace = $1::text AND queue = $2::text;

-- name: insert_start
INSERT INTO onejob_starts (namespace, queue, at) VALUES ($1::text, $2::text, $3::bigint);

-- name: decisive_start
-- The start that must be forgotten before there may be one more.
SELECT at FROM onejob_starts WHERE namespace = $1::text AND queue = $2::text AND at > $3::bigint
ORDER BY at DESC LIMIT 1 OFFSET $4::bigint;

-- ── writing ─────────────────────────────────────────────────────────────────────────────────────────

-- name: insert_job
INSERT INTO onejob_jobs (
    id, namespace, task, queue, state, priority, run_at, place, created_at, args, meta, payload_digest,
    retry, chain_id, timeout, attempt, started_at, finished_at, key, held_key, next_key, holds, traits,
    within, held_at, holds_until, latest_at, version, chain_index, parent_id, superseded_by, reason,
    token, worker, lease_until, cancel_requested, errors, result, progress,
    expires_at, partition, replays, blockers, arrived, following
)
SELECT
    id, namespace, task, queue, state, priority, run_at, place, created_at, args, meta, payload_digest,
    retry, chain_id, timeout, attempt, started_at, finished_at, key, held_key, next_key, holds, traits,
    within, held_at, holds_until, latest_at, version, chain_index, parent_id, superseded_by, reason,
    token, worker, lease_until, cancel_requested, errors, result, progress,
    expires_at, partition, replays, blockers, arrived, following
FROM json_populate_recordset(NULL::onejob_jobs, $1::text::json) ORDER BY held_key, id;

-- name: update_job
-- Everything that may change after admission.
UPDATE onejob_jobs SET
    queue = new.queue, state = new.state, priority = new.priority, run_at = new.run_at, place =
    new.place, args = new.args, meta = new.meta, payload_digest = new.payload_digest, attempt =
    new.attempt, started_at = new.started_at, finished_at = new.finished_at, held_key = new.held_key,
    next_key = new.next_key, traits = new.traits, held_at = new.held_at, holds_until = new.holds_until,
    version = new.version, superseded_by = new.superseded_by, reason = new.reason, token = new.token,
    worker = new.worker, lease_until = new.lease_until, cancel_requested = new.cancel_requested, errors
    = new.errors, result = new.result, progress = new.progress, expires_at = new.expires_at, partition =
    new.partition, replays = new.replays, blockers = new.blockers, arrived = new.arrived, following =
    new.following
FROM json_populate_recordset(NULL::onejob_jobs, $1::text::json) AS new
WHERE onejob_jobs.id = new.id AND new.id || '' = new.id;

-- name: start_job
-- What a start changes, of jobs that start alike.
UPDATE onejob_jobs SET
    state = 'active', attempt = $2::bigint, token = $3::bigint, started_at = $4::bigint, lease_until = $5::bigint,
    worker = $6::text
FROM json_array_elements_text($1::text::json) AS named
WHERE id = named.value AND named.value || '' = named.value;

-- name: complete_job
-- What the end of a run changes that went well.
UPDATE onejob_jobs SET
    state = 'completed', finished_at = new.finished_at, result = new.result,
    held_key = NULL, reason = NULL, worker = NULL, lease_until = NULL
FROM json_to_recordset($1::text::json) AS new (id text, finished_at bigint, result text)
WHERE onejob_jobs.id = new.id AND new.id || '' = new.id;

-- name: complete_untouched
-- The same for jobs that nobody has written since the transaction that started them, that nobody waits behind, and
-- whose keys have no mark. They are locked, so that this stays true; those of which it is true come back.
UPDATE onejob_jobs SET
    state = 'completed', finished_at = $3::bigint, result = new.result,
    held_key = NULL, reason = NULL, worker = NULL, lease_until = NULL
FROM ROWS FROM (
    json_array_elements_text($1::text::json), json_array_elements_text($2::text::json)
) AS new (id, result)
WHERE onejob_jobs.id = new.id AND new.id || '' = new.id AND onejob_jobs.xmin = $4::text::xid
    AND (SELECT 1 FROM onejob_jobs AS next WHERE next.next_key = onejob_jobs.key LIMIT 1) IS NULL
    AND (SELECT 1 FROM onejob_marks WHERE onejob_marks.key = onejob_jobs.key LIMIT 1) IS NULL
RETURNING onejob_jobs.id;

-- name: delete_job
DELETE FROM onejob_jobs USING json_array_elements_text($1::text::json) AS old
WHERE id = old.value AND old.value || '' = old.value;

-- name: insert_mark
-- A key's first mark; if somebody else has set one meanwhile, this fails and the step is tried again.
INSERT INTO onejob_marks (key, version, job, void, touched_at, prior_version, prior_job)
SELECT key, version, job, void, touched_at, prior_version, prior_job
FROM json_populate_recordset(NULL::onejob_marks, $1::text::json) ORDER BY key;

-- name: update_mark
UPDATE onejob_marks SET
    version = new.version, job = new.job, void = new.void, touched_at = new.touched_at,
    prior_version = new.prior_version, prior_job = new.prior_job
FROM json_populate_recordset(NULL::onejob_marks, $1::text::json) AS new
WHERE onejob_marks.key = new.key AND new.key || '' = new.key;

-- name: drop_mark
DELETE FROM onejob_marks USING json_populate_recordset(NULL::onejob_marks, $1::text::json) AS old
WHERE onejob_marks.key = old.key AND old.key || '' = old.key;

-- name: tally
-- Add to the counters, together with what callers' transactions have left apart.
WITH parts AS (
    DELETE FROM onejob_tallies WHERE ctid = ANY (ARRAY(
        SELECT ctid FROM onejob_tallies WHERE part <> '' LIMIT 1000 FOR UPDATE SKIP LOCKED
    ))
    RETURNING namespace, task, outcome, job_id, count, last_at
),
counted AS (
    SELECT namespace, task, outcome, job_id, count, last_at
    FROM json_populate_recordset(NULL::onejob_tallies, $1::text::json)
    UNION ALL
    SELECT * FROM parts
)
INSERT INTO onejob_tallies (namespace, task, outcome, job_id, part, count, last_at)
SELECT namespace, task, outcome, job_id, '', sum(count), max(last_at) FROM counted
GROUP BY namespace, task, outcome, job_id
ORDER BY namespace, task, outcome, job_id
ON CONFLICT (namespace, task, outcome, job_id, part) DO UPDATE SET
    count = onejob_tallies.count + excluded.count, last_at = excluded.last_at;

-- name: tally_apart
-- Count in a caller's transaction: in rows of its own, so that it waits for nobody and nobody for it.
INSERT INTO onejob_tallies (namespace, task, outcome, job_id, part, count, last_at)
SELECT namespace, task, outcome, job_id, gen_random_uuid()::text, sum(count), max(last_at)
FROM json_populate_recordset(NULL::onejob_tallies, $1::text::json)
GROUP BY namespace, task, outcome, job_id;

-- name: fold_tallies
-- Add the counters of jobs that are gone to those of no job.
WITH gone AS (
    DELETE FROM onejob_tallies WHERE ctid = ANY (ARRAY(
        SELECT ctid FROM onejob_tallies AS tally
        WHERE namespace = $1::text AND job_id <> ''
            AND NOT EXISTS (SELECT 1 FROM onejob_jobs WHERE id = tally.job_id)
            AND NOT starts_with(job_id, 'cron:') -- a schedule's
        LIMIT $2::bigint FOR UPDATE SKIP LOCKED
    ))
    RETURNING namespace, task, outcome, count, last_at
),
folded AS (
    INSERT INTO onejob_tallies (namespace, task, outcome, job_id, part, count, last_at)
    SELECT namespace, task, outcome, '', '', sum(count), max(last_at) FROM gone
    GROUP BY namespace, task, outcome ORDER BY namespace, task, outcome
    ON CONFLICT (namespace, task, outcome, job_id, part) DO UPDATE SET
        count = onejob_tallies.count + excluded.count,
        last_at = greatest(onejob_tallies.last_at, excluded.last_at)
)
SELECT count(*) FROM gone;

-- ── hints, and the caller's transaction ─────────────────────────────────────────────────────────────

-- name: notify
SELECT pg_notify('onejob', $1::text);

-- name: joined
-- Who we are, how strictly the caller's transaction is isolated, and its own lock_timeout, to be put back.
SELECT onejob_installation.id, current_setting('transaction_isolation'), current_setting('lock_timeout')
FROM onejob_installation;

-- name: savepoint
SAVEPOINT onejob;

-- name: undo
ROLLBACK TO SAVEPOINT onejob;

-- name: release
RELEASE SAVEPOINT onejob;

-- name: lock_timeout
SELECT set_config('lock_timeout', $1::text, true);
