-- Every statement of the PostgreSQL store, whole. Parameters are numbered and cast, so that any driver can
-- send them; several values go in as one JSON array, keys as one run of 32 bytes each and their number.
-- Columns of onejob_jobs are always read in the order of the table.
-- Lookups are LATERAL, one index probe per key or id: a plan that was made while the table was empty is kept
-- when the table has grown. A LIMIT or OFFSET enforces it where the planner would rather join, and so does a
-- condition that is always true (id || '' = id) where neither can stand: it makes one row of the 100 expected.

-- name: schema_version
SELECT max(version) FROM onejob_schema;

-- name: record_schema_version
INSERT INTO onejob_schema (version, applied_at) VALUES ($1::bigint, $2::bigint);

-- name: known_tables
SELECT relname FROM pg_class
WHERE relkind IN ('r', 'p') AND relname LIKE 'onejob\_%' AND pg_table_is_visible(oid);

-- name: job_columns
SELECT attname FROM pg_attribute WHERE attrelid = to_regclass('onejob_jobs') AND attnum > 0 AND NOT attisdropped;

-- name: create_schema_table
CREATE TABLE IF NOT EXISTS onejob_schema (version BIGINT PRIMARY KEY, applied_at BIGINT NOT NULL);

-- name: migrating
-- One process at a time creates or changes the tables; the others wait and find it done.
SELECT pg_advisory_xact_lock(7310563241);

-- name: backend
-- A pooler tells its clients another number than this.
SELECT pg_backend_pid();

-- name: listen
LISTEN onejob;

-- name: notify
SELECT pg_notify('onejob', $1::text);

-- name: clock
SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint;

-- name: server_settings
-- What the doctor examines.
SELECT current_setting('server_version'), current_setting('server_version_num')::bigint, pg_is_in_recovery(),
    current_setting('fsync'), current_setting('synchronous_commit'), current_setting('full_page_writes'),
    current_setting('autovacuum'), current_setting('server_encoding'),
    current_setting('default_transaction_read_only'), pg_backend_pid();

-- name: privileges
-- What this user may do to each table.
SELECT named, privilege
FROM unnest($1::text[]) AS named CROSS JOIN unnest(ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE']) AS privilege
WHERE to_regclass(named) IS NOT NULL AND has_table_privilege(to_regclass(named), privilege);

-- name: installation
SELECT id FROM onejob_installation;

-- name: begin
BEGIN ISOLATION LEVEL READ COMMITTED;

-- name: commit
COMMIT;

-- name: rollback
ROLLBACK;

-- name: lock_timeout
SELECT set_config('lock_timeout', $1::text, true);

-- name: time_limits
-- Behind a pooler, where a connection has no settings of its own: how long to wait for a lock, for a statement,
-- and for the next statement of an open transaction.
SELECT set_config('lock_timeout', $1::text, true), set_config('statement_timeout', $2::text, true),
    set_config('idle_in_transaction_session_timeout', $3::text, true);

-- name: ping
SELECT 1;

-- name: reset_session
-- Leave nothing of one handler's session to the next. Several statements, so it cannot be prepared.
CLOSE ALL; UNLISTEN *; RESET ALL; DISCARD TEMP; SELECT pg_advisory_unlock_all();

-- ── admission: an optimistic insert ─────────────────────────────────────────────────────────────────

-- name: admit_job
-- Insert one new job if no job stands for its key. Otherwise return the holder and the successor of the key as
-- this statement's snapshot shows them; one row of nulls if it shows none, because the key changed meanwhile.
WITH inserted AS (
    INSERT INTO onejob_jobs (
        id, namespace, task, queue, state, priority, run_at, place, created_at, args, meta, payload_digest,
        chain_id, chain_index, parent_id, expires_at, partition, key, stand, traits, held_at, attempt,
        token, revision, worker, lease_until, cancel_requested, started_at, finished_at, kept_until, result,
        policy, more
    )
    VALUES (
        $1::text, $2::text, $3::text, $4::text, $5::text, $6::bigint, $7::bigint, $8::bigint, $9::bigint,
        $10::text, $11::text, $12::bytea, $13::text, $14::bigint, $15::text, $16::bigint, $17::text,
        $18::bytea, $19::bigint, $20::bigint, $21::bigint, $22::bigint, $23::bigint, $24::bigint, $25::text,
        $26::bigint, $27::boolean, $28::bigint, $29::bigint, $30::bigint, $31::text, $32::text, $33::text
    )
    ON CONFLICT (key, stand) WHERE stand IS NOT NULL DO NOTHING
    RETURNING true
)
SELECT standing.* FROM (SELECT 1 WHERE NOT EXISTS (SELECT 1 FROM inserted)) AS refused
LEFT JOIN LATERAL (SELECT * FROM onejob_jobs WHERE key = $18::bytea AND stand >= 0) AS standing ON true;

-- name: admit_jobs
-- The same for jobs that are alike but for id, args, place, digest and key: what they share is sent once.
-- $1 ids, $2 args, $3 places: JSON arrays of equal length. $4 digests, $5 keys: runs of 32 bytes, no keys if
-- the jobs have none. From $6 on: the shared columns. The id of a refused job comes first in its rows.
WITH wanted AS MATERIALIZED (
    SELECT given.id, given.args::text AS args, given.place::text::bigint AS place,
        substring($4::bytea FROM (given.n * 32 - 31)::int FOR 32) AS payload_digest,
        nullif(substring($5::bytea FROM (given.n * 32 - 31)::int FOR 32), '') AS key
    FROM ROWS FROM (
        json_array_elements_text($1::text::json), json_array_elements($2::text::json),
        json_array_elements($3::text::json)
    ) WITH ORDINALITY AS given (id, args, place, n)
),
inserted AS (
    INSERT INTO onejob_jobs (
        id, namespace, task, queue, state, priority, run_at, place, created_at, args, meta, payload_digest,
        chain_id, chain_index, parent_id, expires_at, partition, key, stand, traits, held_at, attempt,
        token, revision, worker, lease_until, cancel_requested, started_at, finished_at, kept_until, result,
        policy, more
    )
    SELECT
        wanted.id, $6::text, $7::text, $8::text, $9::text, $10::bigint, $11::bigint, wanted.place,
        $12::bigint, wanted.args, $13::text, wanted.payload_digest, $14::text, $15::bigint, $16::text,
        $17::bigint, $18::text, wanted.key, $19::bigint, $20::bigint, $21::bigint, $22::bigint, $23::bigint,
        $24::bigint, $25::text, $26::bigint, $27::boolean, $28::bigint, $29::bigint, $30::bigint, $31::text,
        $32::text, $33::text
    FROM wanted ORDER BY wanted.key -- one order of keys in every session: no deadlock
    ON CONFLICT (key, stand) WHERE stand IS NOT NULL DO NOTHING
    RETURNING id
)
SELECT wanted.id, standing.* FROM wanted
LEFT JOIN LATERAL (SELECT * FROM onejob_jobs WHERE key = wanted.key AND stand >= 0 LIMIT 2) AS standing ON true
WHERE wanted.id NOT IN (SELECT id FROM inserted);

-- ── deciding under locks: a statement that waited keeps its old snapshot, so lock, then read in the next ──

-- name: lock_jobs
-- Jobs by their ids, against all other writers.
SELECT locked.*
FROM (SELECT value FROM json_array_elements_text($1::text::json) ORDER BY value) AS named
CROSS JOIN LATERAL (SELECT * FROM onejob_jobs WHERE id = named.value FOR UPDATE) AS locked;

-- name: lock_free_jobs
-- The same without those that another transaction has locked: they are waited for one by one.
SELECT locked.*
FROM (SELECT value FROM json_array_elements_text($1::text::json) ORDER BY value) AS named
CROSS JOIN LATERAL (SELECT * FROM onejob_jobs WHERE id = named.value FOR UPDATE SKIP LOCKED) AS locked;

-- name: lock_jobs_alone
-- Jobs of which only their own columns will change: transactions that rely on their hold are not in the way.
SELECT locked.*
FROM (SELECT value FROM json_array_elements_text($1::text::json) ORDER BY value) AS named
CROSS JOIN LATERAL (SELECT * FROM onejob_jobs WHERE id = named.value FOR NO KEY UPDATE) AS locked;

-- name: lock_free_jobs_alone
SELECT locked.*
FROM (SELECT value FROM json_array_elements_text($1::text::json) ORDER BY value) AS named
CROSS JOIN LATERAL (SELECT * FROM onejob_jobs WHERE id = named.value FOR NO KEY UPDATE SKIP LOCKED) AS locked;

-- name: lock_predecessors
-- The holder behind which a job waits, before the job itself: a request for the key locks in this order, too.
SELECT locked.id
FROM (SELECT value FROM json_array_elements_text($1::text::json) ORDER BY value) AS named
CROSS JOIN LATERAL (SELECT key FROM onejob_jobs WHERE id = named.value AND coalesce(stand, 0) = 1 LIMIT 1) AS waiting
CROSS JOIN LATERAL (SELECT id FROM onejob_jobs WHERE key = waiting.key AND stand = 0 FOR KEY SHARE) AS locked;

-- name: keys_of
-- A job's key never changes, so this is true even if another transaction has locked the job.
SELECT found.id, found.key FROM json_array_elements_text($1::text::json) AS named
CROSS JOIN LATERAL (SELECT id, key FROM onejob_jobs WHERE id = named.value LIMIT 1) AS found;

-- name: lock_holders
-- Running holders of keys: they may renew their lease meanwhile, but not end.
WITH keys AS MATERIALIZED (
    SELECT substring($1::bytea FROM i * 32 + 1 FOR 32) AS key FROM generate_series(0, $2::int - 1) AS i
),
named AS MATERIALIZED (
    SELECT standing.id FROM keys
    CROSS JOIN LATERAL (SELECT id FROM onejob_jobs WHERE key = keys.key AND stand = 0 LIMIT 1) AS standing
)
SELECT locked.id FROM (SELECT id FROM named ORDER BY id) AS named CROSS JOIN LATERAL (
    SELECT id FROM onejob_jobs
    WHERE id = named.id AND state || '' = 'active' FOR KEY SHARE -- not by the index of all that is active
) AS locked;

-- name: lock_standing
-- Holders that do not run, and successors, of keys, against all other writers.
WITH keys AS MATERIALIZED (
    SELECT substring($1::bytea FROM i * 32 + 1 FOR 32) AS key FROM generate_series(0, $2::int - 1) AS i
),
named AS MATERIALIZED (
    SELECT standing.id FROM keys
    CROSS JOIN LATERAL (SELECT id FROM onejob_jobs WHERE key = keys.key AND stand >= 0 LIMIT 2) AS standing
)
SELECT locked.id FROM (SELECT id FROM named ORDER BY id) AS named CROSS JOIN LATERAL (
    SELECT id FROM onejob_jobs WHERE id = named.id AND state <> 'active' FOR UPDATE
) AS locked;

-- name: lock_successors
-- The successors of holders that are locked already, as they are then.
WITH keys AS MATERIALIZED (
    SELECT substring($1::bytea FROM i * 32 + 1 FOR 32) AS key FROM generate_series(0, $2::int - 1) AS i
)
SELECT locked.* FROM (SELECT key FROM keys ORDER BY key) AS keys
CROSS JOIN LATERAL (SELECT * FROM onejob_jobs WHERE key = keys.key AND stand = 1 FOR UPDATE) AS locked;

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
SELECT found.* FROM json_array_elements_text($1::text::json) AS named
CROSS JOIN LATERAL (SELECT * FROM onejob_jobs WHERE id = named.value LIMIT 1) AS found;

-- name: standing
-- The holders and successors of keys, without jobs that have been read already.
WITH keys AS MATERIALIZED (
    SELECT substring($1::bytea FROM i * 32 + 1 FOR 32) AS key FROM generate_series(0, $2::int - 1) AS i
)
SELECT standing.* FROM keys
CROSS JOIN LATERAL (SELECT * FROM onejob_jobs WHERE key = keys.key AND stand >= 0 LIMIT 2) AS standing
WHERE standing.id NOT IN (SELECT json_array_elements_text($3::text::json));

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
        WHERE state IN ('scheduled', 'retryable') AND namespace = $1::text AND queue = $2::text
    )
    + (SELECT count(*) FROM onejob_jobs WHERE state = 'pending' AND namespace = $1::text AND queue = $2::text);

-- name: tails
SELECT found.* FROM json_array_elements_text($1::text::json) AS named CROSS JOIN LATERAL (
    SELECT * FROM onejob_jobs WHERE id = coalesce(
        (SELECT id FROM onejob_jobs WHERE chain_id = named.value ORDER BY chain_index DESC LIMIT 1), named.value
    ) LIMIT 1
) AS found;

-- name: find_newest
SELECT * FROM onejob_jobs
WHERE ($1::text IS NULL OR namespace = $1::text)
    AND ($2::text IS NULL OR state = ANY (ARRAY(SELECT json_array_elements_text($2::text::json))))
    AND ($3::text IS NULL OR queue = $3::text) AND ($4::text IS NULL OR task = $4::text)
    AND (NOT $5::boolean OR stand IS NOT NULL) AND id < $6::text AND id >= $7::text
ORDER BY id DESC LIMIT $8::bigint OFFSET $9::bigint;

-- name: find_in_state
-- The list is the condition of the index.
SELECT * FROM onejob_jobs
WHERE namespace = $1::text AND state = $2::text
    AND state IN ('scheduled', 'pending', 'retryable', 'cancelled', 'discarded')
    AND ($3::text IS NULL OR queue = $3::text) AND ($4::text IS NULL OR task = $4::text)
    AND (NOT $5::boolean OR stand IS NOT NULL) AND id < $6::text AND id >= $7::text
ORDER BY id DESC LIMIT $8::bigint OFFSET $9::bigint;

-- name: find_active
-- By the index of active jobs, which are few; the expression keeps the planner from walking all ids.
SELECT * FROM onejob_jobs
WHERE state = 'active' AND namespace = $1::text
    AND ($2::text IS NULL OR queue = $2::text) AND ($3::text IS NULL OR task = $3::text)
    AND (NOT $4::boolean OR stand IS NOT NULL) AND id || '' < $5::text AND id || '' >= $6::text
ORDER BY id || '' DESC LIMIT $7::bigint OFFSET $8::bigint;

-- name: find_oldest
SELECT * FROM onejob_jobs
WHERE ($1::text IS NULL OR namespace = $1::text)
    AND ($2::text IS NULL OR state = ANY (ARRAY(SELECT json_array_elements_text($2::text::json))))
    AND ($3::text IS NULL OR queue = $3::text) AND ($4::text IS NULL OR task = $4::text)
    AND (NOT $5::boolean OR stand IS NOT NULL) AND id < $6::text AND id >= $7::text
ORDER BY id LIMIT $8::bigint OFFSET $9::bigint;

-- name: find_held
-- Jobs that stand for a key, by the index of those; the expression keeps the planner from walking all ids.
SELECT * FROM onejob_jobs
WHERE stand IS NOT NULL AND ($1::text IS NULL OR namespace = $1::text)
    AND ($2::text IS NULL OR state = ANY (ARRAY(SELECT json_array_elements_text($2::text::json))))
    AND ($3::text IS NULL OR queue = $3::text) AND ($4::text IS NULL OR task = $4::text)
    AND id || '' < $5::text AND id || '' >= $6::text
ORDER BY id || '' DESC LIMIT $7::bigint OFFSET $8::bigint;

-- name: find_by_key
SELECT * FROM (
    SELECT * FROM onejob_jobs WHERE key = $2::bytea AND stand IS NOT NULL
    UNION ALL
    SELECT * FROM onejob_jobs WHERE key = $2::bytea AND stand IS NULL
) AS found
WHERE namespace = $1::text
    AND ($3::text IS NULL OR state = ANY (ARRAY(SELECT json_array_elements_text($3::text::json))))
    AND ($4::text IS NULL OR queue = $4::text) AND ($5::text IS NULL OR task = $5::text)
    AND id < $6::text
ORDER BY id || '' DESC LIMIT $7::bigint OFFSET $8::bigint;

-- name: find_by_prefix
SELECT * FROM onejob_jobs
WHERE id >= $2::text AND id < $3::text AND namespace = $1::text
ORDER BY id DESC LIMIT $4::bigint;

-- name: find_of_chain
SELECT * FROM (
    SELECT * FROM onejob_jobs WHERE id = $2::text AND chain_id IS NULL
    UNION ALL
    SELECT * FROM onejob_jobs WHERE chain_id = $2::text
) AS member
WHERE namespace = $1::text ORDER BY chain_index LIMIT $3::bigint OFFSET $4::bigint;

-- name: find_expired
SELECT * FROM onejob_jobs WHERE state = 'active' AND namespace = $1::text AND lease_until <= $2::bigint
ORDER BY lease_until, id LIMIT $3::bigint;

-- name: find_late
SELECT * FROM onejob_jobs
WHERE namespace = $1::text AND expires_at <= $2::bigint
    AND state IN ('scheduled', 'available', 'pending', 'retryable')
ORDER BY expires_at, id LIMIT $3::bigint;

-- name: find_overdue
-- The earliest due jobs of every queue and priority: one probe for each, however many jobs wait. Low priorities wait
-- longest, so the 200 lowest are looked at.
WITH RECURSIVE waiting (queue) AS (
    SELECT min(queue) FROM onejob_jobs WHERE state = 'available' AND namespace = $1::text
    UNION ALL
    SELECT (
        SELECT min(queue) FROM onejob_jobs
        WHERE state = 'available' AND namespace = $1::text AND queue > waiting.queue
    ) FROM waiting WHERE waiting.queue IS NOT NULL
),
level (queue, priority, number) AS (
    SELECT queue, (
        SELECT min(priority) FROM onejob_jobs
        WHERE state = 'available' AND namespace = $1::text AND queue = waiting.queue
    ), 1 FROM waiting WHERE queue IS NOT NULL
    UNION ALL
    SELECT queue, (
        SELECT min(priority) FROM onejob_jobs
        WHERE state = 'available' AND namespace = $1::text AND queue = level.queue AND priority > level.priority
    ), number + 1 FROM level WHERE priority IS NOT NULL AND number < 200
),
timed AS (
    SELECT id, row_number() OVER (PARTITION BY queue, priority ORDER BY run_at, id) AS place_in_level FROM (
        SELECT id, queue, priority, run_at FROM onejob_jobs
        WHERE state IN ('scheduled', 'retryable') AND namespace = $1::text AND run_at <= $2::bigint
        ORDER BY run_at LIMIT 1000
    ) AS due
),
head AS (
    SELECT found.id FROM level CROSS JOIN LATERAL (
        SELECT id FROM onejob_jobs
        WHERE state = 'available' AND namespace = $1::text AND queue = level.queue AND priority = level.priority
        ORDER BY run_at, place, id LIMIT $3::bigint
    ) AS found
    UNION ALL
    SELECT id FROM timed WHERE place_in_level <= $3::bigint
)
SELECT job.* FROM head CROSS JOIN LATERAL (SELECT * FROM onejob_jobs WHERE id = head.id LIMIT 1) AS job
ORDER BY job.run_at, job.id;

-- name: find_ended
-- Before a time and an id.
SELECT * FROM onejob_jobs
WHERE namespace = $1::text AND state = $2::text AND finished_at <= $3::bigint
    AND (finished_at, id) < ($3::bigint, $4::text)
    AND ($5::text IS NULL OR task = $5::text)
ORDER BY finished_at DESC, id DESC LIMIT $6::bigint;

-- name: find_prunable
-- After a time and an id.
SELECT * FROM onejob_jobs
WHERE namespace = $1::text AND kept_until <= $2::bigint AND (kept_until, id) > ($3::bigint, $4::text)
ORDER BY kept_until, id LIMIT $5::bigint;

-- name: find_returning
-- Dead letters whose automatic replay is due; 256 is Trait.RETURNS.
SELECT * FROM onejob_jobs
WHERE namespace = $1::text AND state = 'discarded' AND traits & 256 <> 0 AND run_at <= $2::bigint
ORDER BY run_at, id LIMIT $3::bigint;

-- name: find_stranded
-- Successors whose holder has ended or is gone.
SELECT waiting.* FROM onejob_jobs AS waiting
WHERE waiting.state = 'pending' AND waiting.namespace = $1::text AND waiting.stand = 1
    AND (
        SELECT holder.id FROM onejob_jobs AS holder
        WHERE holder.key = waiting.key AND holder.stand = 0
            AND holder.state NOT IN ('completed', 'cancelled', 'discarded')
        LIMIT 1
    ) IS NULL
ORDER BY waiting.id LIMIT $2::bigint;

-- name: find_awaiting
SELECT found.* FROM (
    SELECT DISTINCT job_id FROM json_array_elements_text($2::text::json) AS named
    CROSS JOIN LATERAL (SELECT job_id FROM onejob_waits WHERE chain_id = named.value OFFSET 0) AS waiting
) AS waiting
CROSS JOIN LATERAL (
    SELECT * FROM onejob_jobs
    WHERE id = waiting.job_id AND namespace = $1::text AND state NOT IN ('completed', 'cancelled', 'discarded')
    LIMIT 1
) AS found
ORDER BY found.id LIMIT $3::bigint OFFSET $4::bigint;

-- name: find_blocked
SELECT * FROM onejob_jobs WHERE state = 'pending' AND namespace = $1::text AND more LIKE '%"blockers":%'
ORDER BY id LIMIT $2::bigint OFFSET $3::bigint;

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
SELECT count(DISTINCT key) FROM onejob_jobs
WHERE namespace = $1::text AND stand IS NOT NULL
    AND state IN ('scheduled', 'available', 'pending', 'retryable');

-- ── leasing ─────────────────────────────────────────────────────────────────────────────────────────

-- name: lock_queue
-- A queue with a limit is counted and filled by one worker at a time.
SELECT pg_advisory_xact_lock(hashtextextended('onejob queue ' || $1::text || ' ' || $2::text, 0));

-- name: mature
-- Make scheduled and retryable jobs available whose time has come, as core.runs.mature does. Return the time of
-- the next one.
WITH due AS MATERIALIZED (
    SELECT id FROM onejob_jobs
    WHERE state IN ('scheduled', 'retryable') AND namespace = $1::text AND run_at <= $2::bigint
    ORDER BY run_at LIMIT $3::bigint FOR UPDATE SKIP LOCKED
),
matured AS (
    UPDATE onejob_jobs SET state = 'available', revision = revision + 1
    FROM due WHERE onejob_jobs.id = due.id AND due.id || '' = due.id
)
SELECT min(run_at) FROM onejob_jobs
WHERE state IN ('scheduled', 'retryable') AND namespace = $1::text AND id NOT IN (SELECT id FROM due);

-- name: paused
SELECT name FROM onejob_settings WHERE namespace = $1::text AND kind = 'paused';

-- name: active
-- Running jobs of some queues by queue and partition; in order, because only such a scan of an index remembers
-- which of its entries are dead.
SELECT queue, partition, count(*) FROM (
    SELECT queue, coalesce(partition, '') AS partition FROM onejob_jobs
    WHERE state = 'active' AND namespace = $1::text
        AND queue = ANY (ARRAY(SELECT json_array_elements_text($2::text::json)))
    ORDER BY lease_until
) AS running
GROUP BY queue, partition;

-- name: recent_starts
SELECT at FROM onejob_starts WHERE namespace = $1::text AND queue = $2::text AND at > $3::bigint ORDER BY at;

-- name: note_starts
-- Store that $5 jobs started at $4, and delete starts that the rate counts no more.
WITH gone AS (DELETE FROM onejob_starts WHERE namespace = $1::text AND queue = $2::text AND at <= $3::bigint)
INSERT INTO onejob_starts (namespace, queue, at)
SELECT $1::text, $2::text, $4::bigint FROM generate_series(1, $5::int);

-- name: available
-- The best available jobs of a queue that no other worker is about to start.
SELECT * FROM onejob_jobs
WHERE state = 'available' AND namespace = $1::text AND queue = $2::text
    AND task = ANY (ARRAY(SELECT json_array_elements_text($3::text::json)))
ORDER BY priority DESC, run_at, place, id LIMIT $4::bigint FOR UPDATE SKIP LOCKED;

-- name: available_in_shares
-- The best available jobs of every partition of a queue, as many of each as may start if $4 of it may run at
-- once, $5 in all; one look per partition, however many jobs wait in the others.
WITH RECURSIVE share (name) AS (
    SELECT min(partition) FROM onejob_jobs
    WHERE state = 'available' AND namespace = $1::text AND queue = $2::text AND partition IS NOT NULL
    UNION ALL
    SELECT (
        SELECT min(partition) FROM onejob_jobs
        WHERE state = 'available' AND namespace = $1::text AND queue = $2::text AND partition > share.name
    ) FROM share WHERE share.name IS NOT NULL
),
running AS MATERIALIZED (
    SELECT partition, count(*) AS number FROM (
        SELECT partition FROM onejob_jobs
        WHERE state = 'active' AND namespace = $1::text AND queue = $2::text ORDER BY lease_until
    ) AS active
    GROUP BY partition
),
heads AS (
    SELECT head.* FROM share LEFT JOIN running ON running.partition = share.name
    CROSS JOIN LATERAL (
        SELECT id, priority, run_at, place FROM onejob_jobs
        WHERE state = 'available' AND namespace = $1::text AND queue = $2::text AND partition = share.name
            AND task = ANY (ARRAY(SELECT json_array_elements_text($3::text::json)))
        ORDER BY priority DESC, run_at, place, id
        LIMIT CASE
            WHEN share.name = '' THEN $5::bigint ELSE greatest($4::bigint - coalesce(running.number, 0), 0)
        END
    ) AS head
)
SELECT job.* FROM (SELECT * FROM heads ORDER BY priority DESC, run_at, place, id LIMIT $5::bigint) AS head
CROSS JOIN LATERAL (
    SELECT * FROM onejob_jobs WHERE id = head.id AND state || '' = 'available' FOR UPDATE SKIP LOCKED
) AS job
ORDER BY head.priority DESC, head.run_at, head.place, head.id;

-- name: available_without_partition
-- The best available jobs of a queue with shares that have no partition, because they were enqueued before the queue
-- had shares. No index finds them: the first 200 jobs of the queue are read.
SELECT job.* FROM (
    SELECT id FROM (
        SELECT id, partition, priority, run_at, place FROM onejob_jobs
        WHERE state = 'available' AND namespace = $1::text AND queue = $2::text
            AND task = ANY (ARRAY(SELECT json_array_elements_text($3::text::json)))
        ORDER BY priority DESC, run_at, place, id LIMIT 200
    ) AS front
    WHERE partition IS NULL ORDER BY priority DESC, run_at, place, id LIMIT $4::bigint
) AS head
CROSS JOIN LATERAL (
    SELECT * FROM onejob_jobs WHERE id = head.id AND state || '' = 'available' FOR UPDATE SKIP LOCKED
) AS job;

-- name: start_available
-- Start the best available jobs that no other worker is about to start: of each queue in $2 that is not paused as
-- many as $3 says, $5 in all; they run at $6 for $8 microseconds. This is core.leasing without limits over all
-- workers, and core.runs.start. If one of them may have to end instead, or concerns other jobs of its key (512 and
-- 1024 are Trait.MARKED and Trait.HAS_SUCCESSOR), none is started, and the answer is one row of nulls.
WITH wanted AS MATERIALIZED (
    SELECT queue, number::bigint
    FROM ROWS FROM (
        json_array_elements_text($2::text::json), json_array_elements_text($3::text::json)
    ) AS given (queue, number)
    WHERE NOT EXISTS (
        SELECT 1 FROM onejob_settings WHERE namespace = $1::text AND kind = 'paused' AND name = given.queue
    )
),
best AS MATERIALIZED (
    SELECT job.* FROM wanted CROSS JOIN LATERAL (
        SELECT id, priority, run_at, place,
            expires_at <= greatest($6::bigint, created_at) OR (key IS NOT NULL AND traits & 1536 <> 0) AS is_special
        FROM onejob_jobs
        WHERE state = 'available' AND namespace = $1::text AND queue = wanted.queue
            AND task = ANY (ARRAY(SELECT json_array_elements_text($4::text::json)))
        ORDER BY priority DESC, run_at, place, id LIMIT wanted.number FOR UPDATE SKIP LOCKED
    ) AS job
    ORDER BY job.priority DESC, job.run_at, job.place, job.id LIMIT $5::bigint
),
started AS (
    UPDATE onejob_jobs SET
        state = 'active', revision = revision + 1, attempt = attempt + 1, token = token + 1, worker = $7::text,
        started_at = greatest($6::bigint, created_at, onejob_jobs.run_at),
        lease_until = greatest($6::bigint, created_at) + $8::bigint,
        stand = CASE WHEN traits & 1 = 0 THEN stand END -- Trait.RELEASES_AT_START
    FROM best
    WHERE onejob_jobs.id = best.id AND best.id || '' = best.id
        AND (SELECT bool_or(is_special) FROM best) IS NOT TRUE
    RETURNING onejob_jobs.*
)
SELECT * FROM started
UNION ALL
(SELECT (NULL::onejob_jobs).* FROM best WHERE is_special LIMIT 1);

-- ── writing: an update happens only if the row has the revision that was seen ───────────────────────

-- name: insert_job
-- With $34, a continuation: only if the run with this token has completed the job before it.
INSERT INTO onejob_jobs (
    id, namespace, task, queue, state, priority, run_at, place, created_at, args, meta, payload_digest,
    chain_id, chain_index, parent_id, expires_at, partition, key, stand, traits, held_at, attempt,
    token, revision, worker, lease_until, cancel_requested, started_at, finished_at, kept_until, result,
    policy, more
)
SELECT
    $1::text, $2::text, $3::text, $4::text, $5::text, $6::bigint, $7::bigint, $8::bigint, $9::bigint,
    $10::text, $11::text, $12::bytea, $13::text, $14::bigint, $15::text, $16::bigint, $17::text,
    $18::bytea, $19::bigint, $20::bigint, $21::bigint, $22::bigint, $23::bigint, $24::bigint, $25::text,
    $26::bigint, $27::boolean, $28::bigint, $29::bigint, $30::bigint, $31::text, $32::text, $33::text
WHERE $34::bigint IS NULL OR EXISTS (
    SELECT 1 FROM onejob_jobs WHERE id = $15::text AND token = $34::bigint AND state = 'completed'
);

-- name: update_job
-- Everything that may change after admission; args stay as they are if they are NULL here. It returns the ids
-- that were written, and fails with a division by zero if they are fewer than $28.
WITH written AS (
    UPDATE onejob_jobs SET
        queue = $3::text, state = $4::text, priority = $5::bigint, run_at = $6::bigint, place = $7::bigint,
        args = coalesce($8::text, args), meta = $9::text, payload_digest = $10::bytea, expires_at = $11::bigint,
        partition = $12::text, stand = $13::bigint, traits = $14::bigint, held_at = $15::bigint,
        attempt = $16::bigint, token = $17::bigint, revision = $18::bigint, worker = $19::text,
        lease_until = $20::bigint, cancel_requested = $21::boolean, started_at = $22::bigint,
        finished_at = $23::bigint, kept_until = $24::bigint, result = $25::text, policy = $26::text,
        more = $27::text
    FROM (
        SELECT id FROM onejob_jobs WHERE id = $1::text AND revision = $2::bigint FOR NO KEY UPDATE SKIP LOCKED
    ) AS seen
    WHERE onejob_jobs.id = seen.id
    RETURNING onejob_jobs.id
)
SELECT array_agg(id), 1 / (count(*) >= $28::bigint)::int FROM written;

-- name: update_jobs
-- What the start, the renewal or the end of runs changes, of jobs that change alike: $3 are their results, $4 is
-- added to their revision; attempt, token and started_at stay as they are if they are NULL here. It returns the
-- ids that were written, and fails with a division by zero if they are fewer than $14.
WITH seen AS MATERIALIZED (
    SELECT locked.version, named.result
    FROM ROWS FROM (
        json_array_elements_text($1::text::json), json_array_elements_text($2::text::json),
        json_array_elements_text($3::text::json)
    ) AS named (id, revision, result)
    CROSS JOIN LATERAL (
        SELECT ctid AS version FROM onejob_jobs
        WHERE id = named.id AND revision = named.revision::bigint FOR NO KEY UPDATE SKIP LOCKED
    ) AS locked
),
written AS (
    UPDATE onejob_jobs SET
        result = seen.result, revision = revision + $4::bigint, state = $5::text, stand = $6::bigint,
        worker = $7::text, lease_until = $8::bigint, finished_at = $9::bigint, kept_until = $10::bigint,
        attempt = coalesce($11::bigint, attempt), token = coalesce($12::bigint, token),
        started_at = coalesce($13::bigint, started_at)
    FROM seen WHERE onejob_jobs.ctid = seen.version
    RETURNING onejob_jobs.id
)
SELECT array_agg(id), 1 / (count(*) >= $14::bigint)::int FROM written;

-- name: set_aside
-- Replace a row that cannot be read by one that can, unless its state has changed meanwhile.
UPDATE onejob_jobs SET
    queue = $3::text, state = $4::text, priority = $5::bigint, run_at = $6::bigint, place = $7::bigint,
    args = coalesce($8::text, args), meta = $9::text, payload_digest = $10::bytea, expires_at = $11::bigint,
    partition = $12::text, stand = $13::bigint, traits = $14::bigint, held_at = $15::bigint,
    attempt = $16::bigint, token = $17::bigint, revision = $18::bigint, worker = $19::text,
    lease_until = $20::bigint, cancel_requested = $21::boolean, started_at = $22::bigint,
    finished_at = $23::bigint, kept_until = $24::bigint, result = $25::text, policy = $26::text, more = $27::text,
    created_at = $28::bigint, chain_index = $29::bigint
WHERE id = $1::text AND state = $2::text;

-- name: delete_jobs
DELETE FROM onejob_jobs USING json_array_elements_text($1::text::json) AS old
WHERE id = old.value AND old.value || '' = old.value;

-- name: insert_mark
-- A key's first mark; if another transaction has set one meanwhile, this fails and the step is decided again.
INSERT INTO onejob_marks (key, version, job, void, touched_at, prior_version, prior_job)
VALUES ($1::bytea, $2::bigint, $3::text, $4::boolean, $5::bigint, $6::bigint, $7::text);

-- name: update_mark
UPDATE onejob_marks SET
    version = $2::bigint, job = $3::text, void = $4::boolean, touched_at = $5::bigint, prior_version = $6::bigint,
    prior_job = $7::text
WHERE key = $1::bytea;

-- name: drop_mark
DELETE FROM onejob_marks WHERE key = $1::bytea;

-- ── counters of absorbed requests ───────────────────────────────────────────────────────────────────

-- name: count
-- Add to the counters, together with what callers' transactions have counted apart.
WITH parts AS (
    DELETE FROM onejob_tallies WHERE ctid = ANY (ARRAY(
        SELECT ctid FROM onejob_tallies WHERE part <> '' LIMIT 1000 FOR UPDATE SKIP LOCKED
    ))
    RETURNING namespace, task, outcome, job_id, count, last_at, first_at, last_by
),
counted AS (
    SELECT namespace, task, outcome, job_id, count, last_at, first_at, last_by
    FROM json_populate_recordset(NULL::onejob_tallies, $1::text::json)
    UNION ALL
    SELECT * FROM parts
)
INSERT INTO onejob_tallies (namespace, task, outcome, job_id, part, count, last_at, first_at, last_by)
SELECT
    namespace, task, outcome, job_id, '', sum(count), max(last_at), min(first_at),
    (array_agg(last_by ORDER BY last_by = '', last_at DESC))[1]
FROM counted
GROUP BY namespace, task, outcome, job_id
ORDER BY namespace, task, outcome, job_id
ON CONFLICT (namespace, task, outcome, job_id, part) DO UPDATE SET
    count = onejob_tallies.count + excluded.count,
    last_at = greatest(onejob_tallies.last_at, excluded.last_at),
    first_at = least(onejob_tallies.first_at, excluded.first_at),
    last_by = CASE
        WHEN onejob_tallies.last_by = '' THEN excluded.last_by
        WHEN excluded.last_by <> '' AND excluded.last_at >= onejob_tallies.last_at THEN excluded.last_by
        ELSE onejob_tallies.last_by
    END;

-- name: count_decided
-- Add to the counters in the transaction that writes what was counted.
INSERT INTO onejob_tallies (namespace, task, outcome, job_id, part, count, last_at, first_at, last_by)
SELECT
    namespace, task, outcome, job_id, '', sum(count), max(last_at), min(first_at),
    (array_agg(last_by ORDER BY last_by = '', last_at DESC))[1]
FROM json_populate_recordset(NULL::onejob_tallies, $1::text::json)
GROUP BY namespace, task, outcome, job_id
ORDER BY namespace, task, outcome, job_id
ON CONFLICT (namespace, task, outcome, job_id, part) DO UPDATE SET
    count = onejob_tallies.count + excluded.count,
    last_at = greatest(onejob_tallies.last_at, excluded.last_at),
    first_at = least(onejob_tallies.first_at, excluded.first_at),
    last_by = CASE
        WHEN onejob_tallies.last_by = '' THEN excluded.last_by
        WHEN excluded.last_by <> '' AND excluded.last_at >= onejob_tallies.last_at THEN excluded.last_by
        ELSE onejob_tallies.last_by
    END;

-- name: transaction_id
SELECT pg_current_xact_id()::text;

-- name: transaction_outcome
-- Whether a transaction was committed whose reply was lost.
SELECT pg_xact_status($1::text::xid8);

-- name: count_apart
-- Count in a caller's transaction: in rows of its own, so that it waits for no transaction and delays none.
INSERT INTO onejob_tallies (namespace, task, outcome, job_id, part, count, last_at, first_at, last_by)
SELECT
    namespace, task, outcome, job_id, gen_random_uuid()::text, sum(count), max(last_at), min(first_at),
    (array_agg(last_by ORDER BY last_by = '', last_at DESC))[1]
FROM json_populate_recordset(NULL::onejob_tallies, $1::text::json)
GROUP BY namespace, task, outcome, job_id;

-- name: tallies
SELECT
    namespace, task, outcome, job_id, sum(count)::bigint, max(last_at), min(first_at),
    (array_agg(last_by ORDER BY last_by = '', last_at DESC))[1]
FROM onejob_tallies
WHERE namespace = $1::text
GROUP BY namespace, task, outcome, job_id ORDER BY namespace, task, outcome, job_id;

-- name: tallies_of_jobs
SELECT
    namespace, task, outcome, job_id, sum(count)::bigint, max(last_at), min(first_at),
    (array_agg(last_by ORDER BY last_by = '', last_at DESC))[1]
FROM onejob_tallies
WHERE namespace = $1::text AND job_id = ANY (ARRAY(SELECT json_array_elements_text($2::text::json)))
GROUP BY namespace, task, outcome, job_id ORDER BY namespace, task, outcome, job_id;

-- name: fold_tallies
-- Add the counters of jobs that are gone to those of no job.
WITH gone AS (
    DELETE FROM onejob_tallies WHERE ctid = ANY (ARRAY(
        SELECT ctid FROM onejob_tallies AS tally
        WHERE namespace = $1::text AND job_id <> ''
            AND (SELECT id FROM onejob_jobs WHERE id = tally.job_id LIMIT 1) IS NULL
            AND NOT starts_with(job_id, 'cron:') -- a schedule's
        LIMIT $2::bigint FOR UPDATE SKIP LOCKED
    ))
    RETURNING namespace, task, outcome, count, last_at, first_at
),
folded AS (
    INSERT INTO onejob_tallies (namespace, task, outcome, job_id, part, count, last_at, first_at, last_by)
    SELECT namespace, task, outcome, '', '', sum(count), max(last_at), min(first_at), '' FROM gone
    GROUP BY namespace, task, outcome ORDER BY namespace, task, outcome
    ON CONFLICT (namespace, task, outcome, job_id, part) DO UPDATE SET
        count = onejob_tallies.count + excluded.count,
        last_at = greatest(onejob_tallies.last_at, excluded.last_at),
        first_at = least(onejob_tallies.first_at, excluded.first_at)
)
SELECT count(*) FROM gone;

-- ── observations ────────────────────────────────────────────────────────────────────────────────────

-- name: observe
-- Write observations, given as JSON records.
INSERT INTO onejob_observations (namespace, kind, id, subject, at, data)
SELECT namespace, kind, id, subject, at, data
FROM json_populate_recordset(NULL::onejob_observations, $1::text::json) ORDER BY namespace, kind, id
ON CONFLICT (namespace, kind, id) DO UPDATE SET
    subject = excluded.subject, at = excluded.at, data = excluded.data;

-- name: limit_observations
-- Keep the newest of each subject that the records name. No other index fits, and few subjects are expected, so
-- that a plan without statistics reads the index of subjects too.
DELETE FROM onejob_observations USING (
    SELECT old.ctid
    FROM (
        SELECT DISTINCT namespace || chr(31) || kind || chr(31) || subject AS about
        FROM json_populate_recordset(NULL::onejob_observations, $1::text::json) WHERE namespace || '' = namespace
    ) AS touched
    CROSS JOIN LATERAL (
        SELECT kept.at, kept.id FROM onejob_observations AS kept
        WHERE kept.namespace || chr(31) || kept.kind || chr(31) || kept.subject = touched.about
        ORDER BY kept.at DESC, kept.id DESC LIMIT 1 OFFSET $2::bigint
    ) AS surplus
    JOIN onejob_observations AS old
        ON old.namespace || chr(31) || old.kind || chr(31) || old.subject = touched.about
        AND (old.at, old.id) <= (surplus.at, surplus.id)
    FOR UPDATE OF old SKIP LOCKED
) AS surplus
WHERE onejob_observations.ctid = surplus.ctid;

-- name: observations
SELECT namespace, kind, id, subject, at, data FROM onejob_observations
WHERE namespace = $1::text AND kind = $2::text ORDER BY at DESC, id DESC LIMIT $3::bigint;

-- name: observations_about
SELECT namespace, kind, id, subject, at, data FROM onejob_observations
WHERE namespace || chr(31) || kind || chr(31) || subject = $1::text || chr(31) || $2::text || chr(31) || $3::text
ORDER BY at DESC, id DESC LIMIT $4::bigint;

-- name: forget_observations
DELETE FROM onejob_observations WHERE ctid = ANY (ARRAY(
    SELECT ctid FROM onejob_observations WHERE namespace = $1::text AND kind = $2::text AND (
        at < $3::bigint
        OR (at, id) <= (
            SELECT at, id FROM onejob_observations WHERE namespace = $1::text AND kind = $2::text
            ORDER BY at DESC, id DESC LIMIT 1 OFFSET $4::bigint
        )
    )
    FOR UPDATE SKIP LOCKED
))
RETURNING 1;

-- ── the caller's transaction ────────────────────────────────────────────────────────────────────────

-- name: identify
-- Which database this is, how strictly the caller's transaction is isolated, and its own lock_timeout.
SELECT onejob_installation.id, current_setting('transaction_isolation'), current_setting('lock_timeout')
FROM onejob_installation;

-- name: savepoint
SAVEPOINT onejob;

-- name: undo
ROLLBACK TO SAVEPOINT onejob;

-- name: release
RELEASE SAVEPOINT onejob;

-- ── emptying a namespace ──────────────────────────────────────────────────────────────────────────

-- name: clear_tallies
DELETE FROM onejob_tallies WHERE namespace = $1::text;

-- name: clear_observations
DELETE FROM onejob_observations WHERE namespace = $1::text;

-- name: clear_settings
DELETE FROM onejob_settings WHERE namespace = $1::text;

-- name: clear_starts
DELETE FROM onejob_starts WHERE namespace = $1::text;
