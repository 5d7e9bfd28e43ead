-- Every statement of the SQLite store, whole. Parameters are positional.
-- Columns of onejob_jobs are always read and written in the order of the table.

-- name: schema_version
SELECT max(version) FROM onejob_schema;

-- name: record_schema_version
INSERT INTO onejob_schema (version, applied_at) VALUES (?, ?);

-- name: known_tables
SELECT name FROM sqlite_schema WHERE type = 'table' AND name LIKE 'onejob\_%' ESCAPE '\';

-- name: create_schema_table
CREATE TABLE IF NOT EXISTS onejob_schema (version INTEGER PRIMARY KEY, applied_at INTEGER NOT NULL);

-- name: job
SELECT * FROM onejob_jobs WHERE id = ?;

-- name: jobs
SELECT * FROM onejob_jobs WHERE id IN (SELECT value FROM json_each(?));

-- name: standing
-- The holder of a key and the one that waits behind it.
SELECT * FROM onejob_jobs WHERE held_key = ?1
UNION ALL
SELECT * FROM onejob_jobs WHERE next_key = ?1;

-- name: standing_for_all
-- The same for many keys, given as one blob of 32 bytes each and their number.
WITH RECURSIVE position (i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM position WHERE i + 1 < ?2)
SELECT onejob_jobs.* FROM position CROSS JOIN onejob_jobs ON held_key = substr(?1, i * 32 + 1, 32)
UNION ALL
SELECT onejob_jobs.* FROM position CROSS JOIN onejob_jobs ON next_key = substr(?1, i * 32 + 1, 32);

-- name: successors_for_all
WITH RECURSIVE position (i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM position WHERE i + 1 < ?2)
SELECT onejob_jobs.* FROM position CROSS JOIN onejob_jobs ON next_key = substr(?1, i * 32 + 1, 32);

-- name: marks
WITH RECURSIVE position (i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM position WHERE i + 1 < ?2)
SELECT key, version, job, void, touched_at, prior_version, prior_job
FROM position CROSS JOIN onejob_marks ON key = substr(?1, i * 32 + 1, 32);

-- name: insert_job
INSERT INTO onejob_jobs VALUES (
    ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?,
    ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?,
    ?, ?, ?, ?, ?, ?
);

-- name: insert_plain_job
-- The same for a job that has only what most jobs have when they are new. A NULL takes the sqlite3 module as long
-- as ten numbers, so what is not there is not named.
INSERT INTO onejob_jobs (
    id, namespace, task, queue, state, priority, run_at, place, created_at, args, meta, payload_digest, retry,
    chain_id, key, held_key, holds, traits, held_at, chain_index, parent_id, following,
    attempt, token, cancel_requested, errors
) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 0, 0, 0, X'5B5D');

-- name: insert_plain_job_if_free
INSERT INTO onejob_jobs (
    id, namespace, task, queue, state, priority, run_at, place, created_at, args, meta, payload_digest, retry,
    chain_id, key, held_key, holds, traits, held_at, chain_index, parent_id, following,
    attempt, token, cancel_requested, errors
) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 0, 0, 0, X'5B5D')
ON CONFLICT (held_key) WHERE held_key IS NOT NULL DO NOTHING;

-- name: insert_job_if_free
-- A new job whose key nobody holds: one statement, one commit.
INSERT INTO onejob_jobs VALUES (
    ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?,
    ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?,
    ?, ?, ?, ?, ?, ?
) ON CONFLICT (held_key) WHERE held_key IS NOT NULL DO NOTHING;

-- name: update_job
-- Everything that may change after admission; the id comes last.
UPDATE onejob_jobs SET
    queue = ?, state = ?, priority = ?, run_at = ?, place = ?, args = ?, meta = ?, payload_digest = ?,
    attempt = ?, started_at = ?, finished_at = ?, held_key = ?, next_key = ?, traits = ?, held_at = ?,
    holds_until = ?, version = ?, superseded_by = ?, reason = ?, token = ?, worker = ?, lease_until = ?,
    cancel_requested = ?, errors = ?, result = ?, progress = ?, expires_at = ?, partition = ?, replays = ?,
    blockers = ?, arrived = ?, following = ?
WHERE id = ?;

-- name: start_job
-- What a start changes. The fewer columns are named, the fewer indexes are written: this leaves the hold's alone.
UPDATE onejob_jobs SET state = ?, attempt = ?, started_at = ?, token = ?, worker = ?, lease_until = ?
WHERE id = ?;

-- name: complete_job
-- What the end of a run changes that has succeeded and holds nothing.
UPDATE onejob_jobs SET
    state = 'completed', finished_at = ?, held_key = NULL, reason = NULL, worker = NULL, lease_until = NULL,
    result = ?
WHERE id = ?;

-- name: delete_job
DELETE FROM onejob_jobs WHERE id = ?;

-- name: insert_waits
INSERT OR IGNORE INTO onejob_waits (chain_id, job_id) SELECT value, ?1 FROM json_each(?2);

-- name: drop_waits
DELETE FROM onejob_waits WHERE job_id = ?;

-- name: write_mark
INSERT INTO onejob_marks (key, version, job, void, touched_at, prior_version, prior_job)
VALUES (?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (key) DO UPDATE SET
    version = excluded.version, job = excluded.job, void = excluded.void, touched_at = excluded.touched_at,
    prior_version = excluded.prior_version, prior_job = excluded.prior_job;

-- name: drop_mark
DELETE FROM onejob_marks WHERE key = ?;

-- name: anything_due
SELECT EXISTS (SELECT 1 FROM onejob_jobs WHERE state = 'available' AND namespace = ?1)
    OR EXISTS (SELECT 1 FROM onejob_jobs WHERE state IN ('scheduled', 'retryable') AND run_at <= ?2);

-- name: anything_startable
-- The same where queues have limits, given as an object of names and limits: one that is full has nothing due.
SELECT EXISTS (SELECT 1 FROM onejob_jobs WHERE state IN ('scheduled', 'retryable') AND run_at <= ?2)
    OR EXISTS (
        SELECT 1 FROM json_each(?3) AS wanted
        WHERE EXISTS (
            SELECT 1 FROM onejob_jobs WHERE state = 'available' AND namespace = ?1 AND queue = wanted.key
        ) AND (wanted.value IS NULL OR wanted.value > (
            SELECT count(*) FROM onejob_jobs WHERE state = 'active' AND namespace = ?1 AND queue = wanted.key
        ))
    );

-- name: timed_due
SELECT * FROM onejob_jobs WHERE state IN ('scheduled', 'retryable') AND run_at <= ? ORDER BY run_at LIMIT ?;

-- name: available_in_queue
SELECT * FROM onejob_jobs
WHERE state = 'available' AND namespace = ?1 AND queue = ?2
    AND task IN (SELECT value FROM json_each(?3))
    AND NOT EXISTS (SELECT 1 FROM onejob_settings WHERE namespace = ?1 AND kind = 'paused' AND name = ?2)
ORDER BY priority DESC, run_at, place LIMIT ?4;

-- name: available_in_shares
-- The best jobs of every partition that has room: one look per partition, however long the others' lines are.
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
    ORDER BY priority DESC, run_at, place LIMIT ?5
)
WHERE share.name <> '' AND share.name NOT IN (SELECT value FROM json_each(?4))
UNION ALL
SELECT * FROM (
    SELECT * FROM onejob_jobs
    WHERE state = 'available' AND namespace = ?1 AND queue = ?2 AND partition = ''
        AND task IN (SELECT value FROM json_each(?3))
    ORDER BY priority DESC, run_at, place LIMIT ?6
)
ORDER BY 6 DESC, 7, 8 LIMIT ?6;

-- name: active_in_queue
SELECT count(*) FROM onejob_jobs WHERE state = 'active' AND namespace = ? AND queue = ?;

-- name: active_in_shares
SELECT partition, count(*) FROM onejob_jobs
WHERE state = 'active' AND namespace = ? AND queue = ? AND partition > '' GROUP BY partition;

-- name: forget_starts
DELETE FROM onejob_starts WHERE namespace = ? AND queue = ? AND at <= ?;

-- name: starts_in_queue
SELECT count(*) FROM onejob_starts WHERE namespace = ? AND queue = ?;

-- name: insert_start
INSERT INTO onejob_starts (namespace, queue, at) VALUES (?, ?, ?);

-- name: decisive_start
-- The start that must be forgotten before there may be one more.
SELECT at FROM onejob_starts WHERE namespace = ? AND queue = ? AND at > ? ORDER BY at DESC LIMIT 1 OFFSET ?;

-- name: depth
-- How many jobs wait in a queue, by the indexes that there are.
SELECT (SELECT count(*) FROM onejob_jobs WHERE state = 'available' AND namespace = ?1 AND queue = ?2)
    + (
        SELECT count(*) FROM onejob_jobs
        WHERE state IN ('scheduled', 'retryable') AND run_at > -9223372036854775807
            AND namespace = ?1 AND queue = ?2
    ) + (
        SELECT count(*) FROM onejob_jobs
        WHERE state = 'pending' AND next_key IS NOT NULL AND namespace = ?1 AND queue = ?2
    ) + (
        SELECT count(*) FROM onejob_jobs
        WHERE state = 'pending' AND blockers IS NOT NULL AND id > '' AND next_key IS NULL
            AND namespace = ?1 AND queue = ?2
    );

-- name: next_due
SELECT min(run_at) FROM onejob_jobs WHERE state IN ('scheduled', 'retryable') AND namespace = ?;

-- name: find
SELECT * FROM onejob_jobs
WHERE (?1 IS NULL OR namespace = ?1)
    AND (?2 IS NULL OR state IN (SELECT value FROM json_each(?2)))
    AND (?3 IS NULL OR queue = ?3)
    AND (?4 IS NULL OR task = ?4)
    AND (NOT ?5 OR held_key IS NOT NULL OR next_key IS NOT NULL)
    AND (?6 IS NULL OR chain_id = ?6)
ORDER BY CASE WHEN ?7 THEN id END DESC, CASE WHEN NOT ?7 THEN id END
LIMIT ?8 OFFSET ?9;

-- name: find_newest
-- The same without a sort, for the page that everybody opens first.
SELECT * FROM onejob_jobs WHERE (?1 IS NULL OR namespace = ?1) ORDER BY id DESC LIMIT ?2 OFFSET ?3;

-- name: find_by_key
SELECT * FROM onejob_jobs
WHERE key = ?1
    AND (?2 IS NULL OR state IN (SELECT value FROM json_each(?2)))
    AND (?3 IS NULL OR queue = ?3)
    AND (?4 IS NULL OR task = ?4)
    AND (NOT ?5 OR held_key IS NOT NULL OR next_key IS NOT NULL)
ORDER BY CASE WHEN ?6 THEN id END DESC, CASE WHEN NOT ?6 THEN id END
LIMIT ?7 OFFSET ?8;

-- name: find_expired
SELECT * FROM onejob_jobs WHERE state = 'active' AND lease_until <= ? ORDER BY lease_until LIMIT ?;

-- name: find_late
SELECT * FROM onejob_jobs
WHERE expires_at <= ?1 AND state IN ('scheduled', 'available', 'pending', 'retryable')
ORDER BY expires_at, id LIMIT ?2 OFFSET ?3;

-- name: find_ended
-- Jobs that ended in a state by a time, beyond a time and an id. Tasks are in the index: others cost no row.
SELECT * FROM onejob_jobs
WHERE namespace = ?1 AND state = ?2 AND finished_at < ?3
    AND finished_at >= ?4 AND (finished_at > ?4 OR id > ?5)
    AND (?6 IS NULL OR task = ?6) AND task NOT IN (SELECT value FROM json_each(?7))
ORDER BY finished_at, id LIMIT ?8 OFFSET ?9;

-- name: find_ended_newest
-- The same the other way round. One bound only: of two, the index would be read from the wrong one.
SELECT * FROM onejob_jobs
WHERE namespace = ?1 AND state = ?2 AND finished_at <= ?3 AND (finished_at < ?3 OR id < ?4)
    AND (?5 IS NULL OR task = ?5) AND task NOT IN (SELECT value FROM json_each(?6))
ORDER BY finished_at DESC, id DESC LIMIT ?7 OFFSET ?8;

-- name: find_returning
-- A task's dead letters whose time to come back is near; 256 is Trait.RETURNS.
SELECT * FROM onejob_jobs
WHERE namespace = ? AND task = ? AND state = 'discarded' AND traits & 256 <> 0 AND run_at <= ?
ORDER BY run_at, id LIMIT ? OFFSET ?;

-- name: find_stranded
SELECT waiting.* FROM onejob_jobs AS waiting
LEFT JOIN onejob_jobs AS holder ON holder.held_key = waiting.next_key
WHERE waiting.next_key IS NOT NULL AND waiting.state = 'pending'
    AND (holder.id IS NULL OR holder.finished_at IS NOT NULL)
LIMIT ?;

-- name: find_awaiting
SELECT * FROM onejob_jobs
WHERE finished_at IS NULL AND id IN (
    SELECT job_id FROM json_each(?1) CROSS JOIN onejob_waits ON chain_id = value
)
ORDER BY CASE WHEN ?2 THEN id END DESC, CASE WHEN NOT ?2 THEN id END
LIMIT ?3 OFFSET ?4;

-- name: find_blocked
SELECT * FROM onejob_jobs
WHERE state = 'pending' AND blockers IS NOT NULL
ORDER BY CASE WHEN ?1 THEN id END DESC, CASE WHEN NOT ?1 THEN id END
LIMIT ?2 OFFSET ?3;

-- name: tails
SELECT onejob_jobs.* FROM json_each(?) AS named CROSS JOIN onejob_jobs ON onejob_jobs.id = coalesce(
    (
        SELECT job.id FROM onejob_jobs AS job WHERE chain_id = named.value AND chain_index > 0
        ORDER BY chain_index DESC LIMIT 1
    ),
    named.value
);

-- name: settings
SELECT name, value FROM onejob_settings WHERE namespace = ? AND kind = ?;

-- name: put_setting
INSERT INTO onejob_settings (namespace, kind, name, value) VALUES (?, ?, ?, ?)
ON CONFLICT (namespace, kind, name) DO UPDATE SET value = excluded.value;

-- name: drop_setting
DELETE FROM onejob_settings WHERE namespace = ? AND kind = ? AND name = ?;

-- name: counts
SELECT queue, task, state, count(*) FROM onejob_jobs WHERE namespace = ? GROUP BY queue, task, state;

-- name: keys_waiting
SELECT count(DISTINCT coalesce(held_key, next_key)) FROM onejob_jobs
WHERE namespace = ? AND (held_key IS NOT NULL OR next_key IS NOT NULL)
    AND state IN ('scheduled', 'available', 'pending', 'retryable');

-- name: tally
INSERT INTO onejob_tallies (namespace, task, outcome, job_id, count, last_at) VALUES (?, ?, ?, ?, ?, ?)
ON CONFLICT (namespace, task, outcome, job_id) DO UPDATE SET
    count = count + excluded.count, last_at = excluded.last_at;

-- name: tallies
SELECT namespace, task, outcome, job_id, count, last_at FROM onejob_tallies
WHERE namespace = ? ORDER BY namespace, task, outcome, job_id;

-- name: orphan_tallies
SELECT namespace, task, outcome, job_id FROM onejob_tallies
WHERE namespace = ? AND job_id <> '' AND NOT EXISTS (SELECT 1 FROM onejob_jobs WHERE id = job_id)
    AND job_id NOT GLOB 'cron:*' -- a schedule's
LIMIT ?;

-- name: fold_tally
INSERT INTO onejob_tallies (namespace, task, outcome, job_id, count, last_at)
SELECT namespace, task, outcome, '', count, last_at FROM onejob_tallies
WHERE namespace = ? AND task = ? AND outcome = ? AND job_id = ?
ON CONFLICT (namespace, task, outcome, job_id) DO UPDATE SET
    count = count + excluded.count, last_at = max(last_at, excluded.last_at);

-- name: drop_tally
DELETE FROM onejob_tallies WHERE namespace = ? AND task = ? AND outcome = ? AND job_id = ?;

-- name: data_version
PRAGMA data_version;
