-- Every statement of the SQLite store, whole. Parameters are positional.
-- Columns of onejob_jobs are read and written in the order of the table.

-- name: known_tables
SELECT name FROM sqlite_schema WHERE type = 'table' AND name LIKE 'onejob\_%' ESCAPE '\';

-- name: old_columns
-- Tables from before the row layout changed have a column for the key of a holder.
SELECT name FROM pragma_table_info('onejob_jobs') WHERE name = 'held_key';

-- name: schema_version
SELECT max(version) FROM onejob_schema;

-- name: record_schema_version
INSERT INTO onejob_schema (version, applied_at) VALUES (?, ?);

-- name: create_schema_table
CREATE TABLE IF NOT EXISTS onejob_schema (version INTEGER PRIMARY KEY, applied_at INTEGER NOT NULL);

-- name: data_version
PRAGMA data_version;

-- ── what steps read ───────────────────────────────────────────────────────────────────────────────

-- name: job
SELECT * FROM onejob_jobs WHERE id = ?;

-- name: jobs
SELECT onejob_jobs.* FROM json_each(?) AS named CROSS JOIN onejob_jobs ON onejob_jobs.id = named.value;

-- name: standing
-- The holder of a key and its successor. `stand >= 0` keeps the index from reading the key's history.
SELECT * FROM onejob_jobs WHERE key = ? AND stand >= 0;

-- name: standing_for_all
-- The same for many keys, given as one blob of 32 bytes each and their number.
WITH RECURSIVE position (i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM position WHERE i + 1 < ?2)
SELECT onejob_jobs.* FROM position CROSS JOIN onejob_jobs ON key = substr(?1, i * 32 + 1, 32) AND stand >= 0;

-- name: marks
WITH RECURSIVE position (i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM position WHERE i + 1 < ?2)
SELECT key, version, job, void, touched_at, prior_version, prior_job
FROM position CROSS JOIN onejob_marks ON key = substr(?1, i * 32 + 1, 32);

-- name: depth
-- How many jobs wait in a queue.
SELECT (SELECT count(*) FROM onejob_jobs WHERE state = 'available' AND namespace = ?1 AND queue = ?2)
    + (SELECT count(*) FROM onejob_jobs WHERE state = 'pending' AND namespace = ?1 AND queue = ?2)
    + (
        SELECT count(*) FROM onejob_jobs
        WHERE state IN ('scheduled', 'retryable') AND namespace = ?1 AND queue = ?2
    );

-- ── what steps write ──────────────────────────────────────────────────────────────────────────────

-- name: insert_job
-- It names the columns, because the tables of a newer version may have more of them.
INSERT INTO onejob_jobs (
    id, namespace, task, queue, state, priority, run_at, place, created_at, args, meta, payload_digest,
    chain_id, chain_index, parent_id, expires_at, partition, key, stand, traits, held_at, attempt, token,
    revision, worker, lease_until, cancel_requested, started_at, finished_at, kept_until, result, policy, more
) VALUES (
    ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?,
    ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?
);

-- name: insert_new_job
-- The same for a job that has only what most jobs have when they are new.
INSERT INTO onejob_jobs (
    id, namespace, task, queue, state, priority, run_at, place, created_at, args, payload_digest,
    key, stand, traits, held_at, revision, policy, chain_index, attempt, token, cancel_requested
) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 0, 0, 0, 0);

-- name: update_job
-- Everything that may change after admission. Every update is fenced by the revision that was read.
UPDATE onejob_jobs SET
    queue = ?, state = ?, priority = ?, run_at = ?, place = ?, args = ?, meta = ?, payload_digest = ?,
    expires_at = ?, partition = ?, stand = ?, traits = ?, held_at = ?, attempt = ?, token = ?, revision = ?,
    worker = ?, lease_until = ?, cancel_requested = ?, started_at = ?, finished_at = ?, kept_until = ?,
    result = ?, policy = ?, more = ?
WHERE id = ? AND revision = ?;

-- name: ready_job
-- The fewer columns an update names, the fewer indexes SQLite writes: these four are for the common changes.
UPDATE onejob_jobs SET state = 'available', revision = ? WHERE id = ? AND revision = ?;

-- name: start_job
UPDATE onejob_jobs SET
    state = 'active', attempt = ?, token = ?, revision = ?, worker = ?, lease_until = ?, started_at = ?
WHERE id = ? AND revision = ?;

-- name: renew_job
UPDATE onejob_jobs SET revision = ?, lease_until = ? WHERE id = ? AND revision = ?;

-- name: complete_job
UPDATE onejob_jobs SET
    state = 'completed', stand = NULL, revision = ?, lease_until = NULL, finished_at = ?, kept_until = ?,
    result = ?
WHERE id = ? AND revision = ?;

-- name: set_aside_job
-- A row that could not be read, whatever its revision is: every column may be damaged.
UPDATE onejob_jobs SET (
    id, namespace, task, queue, state, priority, run_at, place, created_at, args, meta, payload_digest,
    chain_id, chain_index, parent_id, expires_at, partition, key, stand, traits, held_at, attempt, token,
    revision, worker, lease_until, cancel_requested, started_at, finished_at, kept_until, result, policy, more
) = (
    ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?,
    ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?
) WHERE id = ?1;

-- name: delete_job
DELETE FROM onejob_jobs WHERE id = ? AND revision = ?;

-- name: insert_waits
INSERT OR IGNORE INTO onejob_waits (chain_id, job_id) SELECT value, ?1 FROM json_each(?2);

-- name: delete_waits
DELETE FROM onejob_waits WHERE job_id = ?;

-- name: write_mark
INSERT INTO onejob_marks (key, version, job, void, touched_at, prior_version, prior_job)
VALUES (?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (key) DO UPDATE SET
    version = excluded.version, job = excluded.job, void = excluded.void, touched_at = excluded.touched_at,
    prior_version = excluded.prior_version, prior_job = excluded.prior_job;

-- name: delete_mark
DELETE FROM onejob_marks WHERE key = ?;

-- ── leasing ───────────────────────────────────────────────────────────────────────────────────────

-- name: timed_due
SELECT * FROM onejob_jobs
WHERE state IN ('scheduled', 'retryable') AND namespace = ? AND run_at <= ? ORDER BY run_at LIMIT ?;

-- name: next_timed
SELECT min(run_at) FROM onejob_jobs WHERE state IN ('scheduled', 'retryable') AND namespace = ?;

-- name: available_in_queue
SELECT * FROM onejob_jobs
WHERE state = 'available' AND namespace = ?1 AND queue = ?2 AND task IN (SELECT value FROM json_each(?3))
ORDER BY priority DESC, run_at, place, id LIMIT ?4;

-- name: available_in_shares
-- The best jobs of every partition that is not full: one probe per partition, however many jobs the others have.
WITH RECURSIVE share (name) AS (
    SELECT min(partition) FROM onejob_jobs
    WHERE state = 'available' AND namespace = ?1 AND queue = ?2 AND partition IS NOT NULL
    UNION ALL
    SELECT (
        SELECT min(partition) FROM onejob_jobs
        WHERE state = 'available' AND namespace = ?1 AND queue = ?2 AND partition > share.name
    ) FROM share WHERE share.name IS NOT NULL
)
SELECT job.* FROM share CROSS JOIN onejob_jobs AS job ON job.id IN (
    SELECT id FROM onejob_jobs
    WHERE state = 'available' AND namespace = ?1 AND queue = ?2 AND partition = share.name
        AND task IN (SELECT value FROM json_each(?3))
    ORDER BY priority DESC, run_at, place, id LIMIT ?5
)
WHERE share.name <> '' AND share.name NOT IN (SELECT value FROM json_each(?4))
UNION ALL
SELECT * FROM (
    SELECT * FROM onejob_jobs
    WHERE state = 'available' AND namespace = ?1 AND queue = ?2 AND partition = ''
        AND task IN (SELECT value FROM json_each(?3))
    ORDER BY priority DESC, run_at, place, id LIMIT ?6
)
ORDER BY priority DESC, run_at, place, id LIMIT ?6;

-- name: available_without_partition
-- Jobs that were enqueued before their queue had shares have no partition. No index finds them: the first 200 jobs of
-- the queue are read.
SELECT * FROM (
    SELECT * FROM onejob_jobs
    WHERE state = 'available' AND namespace = ?1 AND queue = ?2 AND task IN (SELECT value FROM json_each(?3))
    ORDER BY priority DESC, run_at, place, id LIMIT 200
)
WHERE partition IS NULL LIMIT ?4;

-- name: active_in_shares
SELECT queue, coalesce(partition, ''), count(*) FROM onejob_jobs
WHERE state = 'active' AND namespace = ? GROUP BY 1, 2;

-- name: recent_starts
SELECT at FROM onejob_starts WHERE namespace = ? AND queue = ? AND at > ? ORDER BY at;

-- name: insert_start
INSERT INTO onejob_starts (namespace, queue, at) VALUES (?, ?, ?);

-- name: delete_starts
DELETE FROM onejob_starts WHERE namespace = ? AND queue = ? AND at <= ?;

-- ── named queries ─────────────────────────────────────────────────────────────────────────────────

-- name: find_held
SELECT * FROM onejob_jobs
WHERE stand IS NOT NULL AND (?1 IS NULL OR namespace = ?1)
    AND (?2 IS NULL OR state IN (SELECT value FROM json_each(?2)))
    AND (?3 IS NULL OR queue = ?3)
    AND (?4 IS NULL OR task = ?4)
    AND id < ?5 AND id >= ?6
ORDER BY id DESC LIMIT ?7 OFFSET ?8;

-- name: find_newest
SELECT * FROM onejob_jobs
WHERE (?1 IS NULL OR namespace = ?1)
    AND (?2 IS NULL OR state IN (SELECT value FROM json_each(?2)))
    AND (?3 IS NULL OR queue = ?3)
    AND (?4 IS NULL OR task = ?4)
    AND (NOT ?5 OR stand IS NOT NULL)
    AND id < ?6 AND id >= ?7
ORDER BY id DESC LIMIT ?8 OFFSET ?9;

-- name: find_in_state
-- The list is the condition of the index.
SELECT * FROM onejob_jobs
WHERE namespace = ?1 AND state = ?2
    AND state IN ('scheduled', 'pending', 'retryable', 'cancelled', 'discarded')
    AND (?3 IS NULL OR queue = ?3)
    AND (?4 IS NULL OR task = ?4)
    AND (NOT ?5 OR stand IS NOT NULL)
    AND id < ?6 AND id >= ?7
ORDER BY id DESC LIMIT ?8 OFFSET ?9;

-- name: find_active
-- By the index of active jobs, which are few; a plus keeps the planner from walking all ids.
SELECT * FROM onejob_jobs
WHERE state = 'active' AND namespace = ?1
    AND (?2 IS NULL OR queue = ?2)
    AND (?3 IS NULL OR task = ?3)
    AND (NOT ?4 OR stand IS NOT NULL)
    AND +id < ?5 AND +id >= ?6
ORDER BY +id DESC LIMIT ?7 OFFSET ?8;

-- name: find_oldest
SELECT * FROM onejob_jobs
WHERE (?1 IS NULL OR namespace = ?1)
    AND (?2 IS NULL OR state IN (SELECT value FROM json_each(?2)))
    AND (?3 IS NULL OR queue = ?3)
    AND (?4 IS NULL OR task = ?4)
    AND (NOT ?5 OR stand IS NOT NULL)
    AND id < ?6 AND id >= ?7
ORDER BY id LIMIT ?8 OFFSET ?9;

-- name: find_by_key
SELECT * FROM onejob_jobs
WHERE key = ?2 AND namespace = ?1
    AND (?3 IS NULL OR state IN (SELECT value FROM json_each(?3)))
    AND (?4 IS NULL OR queue = ?4)
    AND (?5 IS NULL OR task = ?5)
    AND id < ?6
ORDER BY id DESC LIMIT ?7 OFFSET ?8;

-- name: find_by_prefix
SELECT * FROM onejob_jobs
WHERE id >= ?2 AND id < ?3 AND namespace = ?1
ORDER BY id DESC LIMIT ?4;

-- name: find_of_chain
SELECT * FROM onejob_jobs WHERE id = ?2 AND chain_id IS NULL AND namespace = ?1
UNION ALL
SELECT * FROM onejob_jobs WHERE chain_id = ?2 AND namespace = ?1
ORDER BY chain_index LIMIT ?3 OFFSET ?4;

-- name: find_expired
SELECT * FROM onejob_jobs
WHERE state = 'active' AND namespace = ? AND lease_until <= ? ORDER BY lease_until, id LIMIT ?;

-- name: find_late
SELECT * FROM onejob_jobs
WHERE namespace = ? AND expires_at <= ? AND state IN ('scheduled', 'available', 'pending', 'retryable')
ORDER BY expires_at, id LIMIT ?;

-- name: find_overdue
-- The earliest due jobs of every queue and priority: one probe for each, however many jobs wait. Low priorities wait
-- longest, so the 200 lowest are looked at.
WITH RECURSIVE waiting (queue) AS (
    SELECT min(queue) FROM onejob_jobs WHERE state = 'available' AND namespace = ?1
    UNION ALL
    SELECT (
        SELECT min(queue) FROM onejob_jobs WHERE state = 'available' AND namespace = ?1 AND queue > waiting.queue
    ) FROM waiting WHERE waiting.queue IS NOT NULL
),
level (queue, priority, number) AS (
    SELECT queue, (
        SELECT min(priority) FROM onejob_jobs
        WHERE state = 'available' AND namespace = ?1 AND queue = waiting.queue
    ), 1 FROM waiting WHERE queue IS NOT NULL
    UNION ALL
    SELECT queue, (
        SELECT min(priority) FROM onejob_jobs
        WHERE state = 'available' AND namespace = ?1 AND queue = level.queue AND priority > level.priority
    ), number + 1 FROM level WHERE priority IS NOT NULL AND number < 200
),
timed (id, place_in_level) AS (
    SELECT id, row_number() OVER (PARTITION BY queue, priority ORDER BY run_at, id) FROM (
        SELECT id, queue, priority, run_at FROM onejob_jobs
        WHERE state IN ('scheduled', 'retryable') AND namespace = ?1 AND run_at <= ?2 ORDER BY run_at LIMIT 1000
    )
)
SELECT job.* FROM level CROSS JOIN onejob_jobs AS job ON job.id IN (
    SELECT id FROM onejob_jobs
    WHERE state = 'available' AND namespace = ?1 AND queue = level.queue AND priority = level.priority
    ORDER BY run_at, place, id LIMIT ?3
)
UNION ALL
SELECT job.* FROM timed CROSS JOIN onejob_jobs AS job ON job.id = timed.id WHERE timed.place_in_level <= ?3
ORDER BY run_at, id;

-- name: find_ended
-- One bound only: of two, the index would be read from the wrong one.
SELECT * FROM onejob_jobs
WHERE namespace = ?1 AND state = ?2 AND finished_at <= ?3 AND (finished_at < ?3 OR id < ?4)
    AND (?5 IS NULL OR task = ?5)
ORDER BY finished_at DESC, id DESC LIMIT ?6;

-- name: find_prunable
SELECT * FROM onejob_jobs
WHERE namespace = ?1 AND kept_until <= ?2 AND kept_until >= ?3 AND (kept_until > ?3 OR id > ?4)
ORDER BY kept_until, id LIMIT ?5;

-- name: find_returning
-- 256 is Trait.RETURNS.
SELECT * FROM onejob_jobs
WHERE namespace = ? AND state = 'discarded' AND traits & 256 <> 0 AND run_at <= ? ORDER BY run_at, id LIMIT ?;

-- name: find_stranded
SELECT waiting.* FROM onejob_jobs AS waiting
LEFT JOIN onejob_jobs AS holder ON holder.key = waiting.key AND holder.stand = 0
WHERE waiting.state = 'pending' AND waiting.namespace = ? AND waiting.stand = 1
    AND (holder.id IS NULL OR holder.finished_at IS NOT NULL)
ORDER BY waiting.id LIMIT ?;

-- name: find_awaiting
SELECT * FROM onejob_jobs
WHERE finished_at IS NULL AND namespace = ?1 AND id IN (
    SELECT job_id FROM json_each(?2) CROSS JOIN onejob_waits ON chain_id = value
)
ORDER BY id LIMIT ?3 OFFSET ?4;

-- name: find_blocked
SELECT * FROM onejob_jobs
WHERE state = 'pending' AND json_extract(more, '$.blockers') IS NOT NULL AND namespace = ?
ORDER BY id LIMIT ? OFFSET ?;

-- name: tails
SELECT onejob_jobs.* FROM json_each(?) AS named CROSS JOIN onejob_jobs ON onejob_jobs.id = coalesce(
    (SELECT job.id FROM onejob_jobs AS job WHERE job.chain_id = named.value ORDER BY chain_index DESC LIMIT 1),
    named.value
);

-- name: counts
SELECT queue, task, state, count(*) FROM onejob_jobs WHERE namespace = ? GROUP BY queue, task, state;

-- name: keys_waiting
SELECT count(DISTINCT key) FROM onejob_jobs
WHERE namespace = ? AND key IS NOT NULL AND stand >= 0
    AND state IN ('scheduled', 'available', 'pending', 'retryable');

-- ── settings and counters ─────────────────────────────────────────────────────────────────────────

-- name: settings
SELECT name, value FROM onejob_settings WHERE namespace = ? AND kind = ?;

-- name: put_setting
INSERT INTO onejob_settings (namespace, kind, name, value) VALUES (?, ?, ?, ?)
ON CONFLICT (namespace, kind, name) DO UPDATE SET value = excluded.value;

-- name: drop_setting
DELETE FROM onejob_settings WHERE namespace = ? AND kind = ? AND name = ?;

-- name: tally
INSERT INTO onejob_tallies (namespace, task, outcome, job_id, count, last_at, first_at, last_by)
VALUES (?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (namespace, task, outcome, job_id) DO UPDATE SET
    count = count + excluded.count, last_at = max(last_at, excluded.last_at),
    first_at = min(first_at, excluded.first_at),
    last_by = CASE
        WHEN last_by = '' OR (excluded.last_by <> '' AND excluded.last_at >= last_at) THEN excluded.last_by
        ELSE last_by
    END;

-- name: tallies
SELECT namespace, task, outcome, job_id, count, last_at, first_at, last_by FROM onejob_tallies
WHERE namespace = ? ORDER BY namespace, task, outcome, job_id;

-- name: tallies_of_jobs
SELECT namespace, task, outcome, job_id, count, last_at, first_at, last_by FROM onejob_tallies
WHERE namespace = ? AND job_id IN (SELECT value FROM json_each(?)) ORDER BY namespace, task, outcome, job_id;

-- name: orphan_tallies
SELECT namespace, task, outcome, job_id FROM onejob_tallies
WHERE namespace = ? AND job_id <> '' AND NOT EXISTS (SELECT 1 FROM onejob_jobs WHERE id = job_id)
    AND job_id NOT GLOB 'cron:*' -- a schedule's
LIMIT ?;

-- name: fold_tally
INSERT INTO onejob_tallies (namespace, task, outcome, job_id, count, last_at, first_at, last_by)
SELECT namespace, task, outcome, '', count, last_at, first_at, '' FROM onejob_tallies
WHERE namespace = ? AND task = ? AND outcome = ? AND job_id = ?
ON CONFLICT (namespace, task, outcome, job_id) DO UPDATE SET
    count = count + excluded.count, last_at = max(last_at, excluded.last_at),
    first_at = min(first_at, excluded.first_at);

-- name: delete_tally
DELETE FROM onejob_tallies WHERE namespace = ? AND task = ? AND outcome = ? AND job_id = ?;

-- ── observations ──────────────────────────────────────────────────────────────────────────────────

-- name: observe
-- Write observations, given as JSON records.
INSERT INTO onejob_observations (namespace, kind, id, subject, at, data)
SELECT
    json_extract(value, '$.namespace'), json_extract(value, '$.kind'), json_extract(value, '$.id'),
    json_extract(value, '$.subject'), json_extract(value, '$.at'), json_extract(value, '$.data')
FROM json_each(?1) WHERE true
ON CONFLICT (namespace, kind, id) DO UPDATE SET
    subject = excluded.subject, at = excluded.at, data = excluded.data;

-- name: limit_observations
-- Keep the newest of each subject that the records name.
WITH touched AS (
    SELECT DISTINCT
        json_extract(value, '$.namespace') AS namespace, json_extract(value, '$.kind') AS kind,
        json_extract(value, '$.subject') AS subject
    FROM json_each(?1)
)
DELETE FROM onejob_observations WHERE (namespace, kind, id) IN (
    SELECT old.namespace, old.kind, old.id
    FROM touched CROSS JOIN onejob_observations AS old USING (namespace, kind, subject)
    WHERE (old.at, old.id) <= (
        SELECT kept.at, kept.id FROM onejob_observations AS kept
        WHERE kept.namespace = touched.namespace AND kept.kind = touched.kind
            AND kept.subject = touched.subject
        ORDER BY kept.at DESC, kept.id DESC LIMIT 1 OFFSET ?2
    )
);

-- name: observations
SELECT namespace, kind, id, subject, at, data FROM onejob_observations
WHERE namespace = ?1 AND kind = ?2 ORDER BY at DESC, id DESC LIMIT ?3;

-- name: observations_about
SELECT namespace, kind, id, subject, at, data FROM onejob_observations
WHERE namespace = ?1 AND kind = ?2 AND subject = ?3 ORDER BY at DESC, id DESC LIMIT ?4;

-- name: forget_observations
DELETE FROM onejob_observations WHERE namespace = ?1 AND kind = ?2 AND (
    at < ?3
    OR (at, id) <= (
        SELECT at, id FROM onejob_observations WHERE namespace = ?1 AND kind = ?2
        ORDER BY at DESC, id DESC LIMIT 1 OFFSET ?4
    )
)
RETURNING 1;

-- ── emptying a namespace ──────────────────────────────────────────────────────────────────────────

-- name: clear_tallies
DELETE FROM onejob_tallies WHERE namespace = ?;

-- name: clear_observations
DELETE FROM onejob_observations WHERE namespace = ?;

-- name: clear_settings
DELETE FROM onejob_settings WHERE namespace = ?;

-- name: clear_starts
DELETE FROM onejob_starts WHERE namespace = ?;
