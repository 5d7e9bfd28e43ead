-- Chains that wait for others, shares of a queue, times to be too late, and what is decided at run time.

ALTER TABLE onejob_jobs ADD COLUMN expires_at INTEGER;
ALTER TABLE onejob_jobs ADD COLUMN partition TEXT;
ALTER TABLE onejob_jobs ADD COLUMN replays INTEGER NOT NULL DEFAULT 0;
ALTER TABLE onejob_jobs ADD COLUMN blockers BLOB;
ALTER TABLE onejob_jobs ADD COLUMN arrived BLOB;
ALTER TABLE onejob_jobs ADD COLUMN following BLOB;

-- By namespace and state first: who forgets what has ended, or lists dead letters, passes nothing else by.
DROP INDEX onejob_ended;
CREATE INDEX onejob_ended ON onejob_jobs (namespace, state, finished_at, task) WHERE finished_at IS NOT NULL;

-- Dead letters that come back by themselves; 256 is Trait.RETURNS.
CREATE INDEX onejob_returning ON onejob_jobs (namespace, task, run_at)
    WHERE state = 'discarded' AND traits & 256 <> 0;

CREATE INDEX onejob_blocked ON onejob_jobs (id) WHERE state = 'pending' AND blockers IS NOT NULL;

-- Who waits for a chain: the blockers of every job, the other way round.
CREATE TABLE onejob_waits (
    chain_id TEXT NOT NULL,
    job_id TEXT NOT NULL,
    PRIMARY KEY (chain_id, job_id)
) WITHOUT ROWID;
CREATE INDEX onejob_waiting ON onejob_waits (job_id);

CREATE TABLE onejob_settings (
    namespace TEXT NOT NULL,
    kind TEXT NOT NULL,
    name TEXT NOT NULL,
    value BLOB NOT NULL,
    PRIMARY KEY (namespace, kind, name)
) WITHOUT ROWID;

-- Jobs that must start by a time, and the line of each partition.
CREATE INDEX onejob_expiring ON onejob_jobs (expires_at, id)
    WHERE expires_at IS NOT NULL AND state IN ('scheduled', 'available', 'pending', 'retryable');
CREATE INDEX onejob_shares ON onejob_jobs (namespace, queue, partition, priority DESC, run_at, place)
    WHERE state = 'available' AND partition IS NOT NULL;

-- When jobs of queues with a rate have started.
CREATE TABLE onejob_starts (
    namespace TEXT NOT NULL,
    queue TEXT NOT NULL,
    at INTEGER NOT NULL
);
CREATE INDEX onejob_started ON onejob_starts (namespace, queue, at);
