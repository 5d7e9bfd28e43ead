-- Jobs, the marks of versioned keys, the counters of absorbed requests, and settings.
-- Times are microseconds since 1970 in UTC. Keys are 32-byte hashes. The columns of onejob_jobs stand in the order
-- of `stores/columns.py`. There are no CHECK constraints: they take a quarter of the time of an insert, and onejob
-- alone writes these tables. A row that cannot be read is set aside.

CREATE TABLE onejob_jobs (
    id TEXT NOT NULL PRIMARY KEY,
    namespace TEXT NOT NULL,
    task TEXT NOT NULL,
    queue TEXT NOT NULL,
    state TEXT NOT NULL,
    priority INTEGER NOT NULL,
    run_at INTEGER NOT NULL,
    place INTEGER NOT NULL,
    created_at INTEGER NOT NULL,
    args TEXT NOT NULL,
    meta TEXT, -- NULL if empty
    payload_digest BLOB NOT NULL,
    chain_id TEXT, -- NULL if it is the job's own id
    chain_index INTEGER NOT NULL,
    parent_id TEXT,
    expires_at INTEGER,
    partition TEXT,
    key BLOB,
    stand INTEGER, -- 0 holds the key, 1 waits behind the holder, NULL neither
    traits INTEGER NOT NULL,
    held_at INTEGER,
    attempt INTEGER NOT NULL,
    token INTEGER NOT NULL,
    revision INTEGER NOT NULL, -- raised by every write
    worker TEXT,
    lease_until INTEGER,
    cancel_requested INTEGER NOT NULL,
    started_at INTEGER,
    finished_at INTEGER,
    kept_until INTEGER, -- when an ended job may be pruned
    result TEXT,
    policy TEXT NOT NULL, -- JSON: what is equal for all jobs of a task
    more TEXT -- JSON: what most jobs do not have
);

-- A job holds a key in its own row: at most one holder and one successor per key, and no orphan. NULLs are
-- distinct, so the same index serves the history of a key.
CREATE UNIQUE INDEX onejob_keys ON onejob_jobs (key, stand) WHERE key IS NOT NULL;
CREATE UNIQUE INDEX onejob_chains ON onejob_jobs (chain_id, chain_index) WHERE chain_id IS NOT NULL;

-- Leasing: available jobs by rank, those of one partition likewise, and jobs that wait for a time. The state is in
-- an index where jobs are counted, so that counting reads no row.
CREATE INDEX onejob_due ON onejob_jobs (namespace, queue, priority DESC, run_at, place, id, state)
    WHERE state = 'available';
CREATE INDEX onejob_shares ON onejob_jobs (namespace, queue, partition, priority DESC, run_at, place, id)
    WHERE state = 'available' AND partition IS NOT NULL;
CREATE INDEX onejob_timed ON onejob_jobs (namespace, run_at, queue, state) WHERE state IN ('scheduled', 'retryable');

-- Active jobs by the end of their lease. Queue, partition and state are in it so that counting jobs reads no row.
CREATE INDEX onejob_leased ON onejob_jobs (namespace, lease_until, queue, partition, state) WHERE state = 'active';

-- Pending jobs: those that wait behind a holder (stand 1) and those that have blockers.
CREATE INDEX onejob_pending ON onejob_jobs (namespace, queue, stand, state) WHERE state = 'pending';
CREATE INDEX onejob_blocked ON onejob_jobs (namespace, id)
    WHERE state = 'pending' AND json_extract(more, '$.blockers') IS NOT NULL;

CREATE INDEX onejob_expiring ON onejob_jobs (namespace, expires_at, id)
    WHERE expires_at IS NOT NULL AND state IN ('scheduled', 'available', 'pending', 'retryable');

-- Ended jobs by when they ended, and by when they may be pruned.
CREATE INDEX onejob_ended ON onejob_jobs (namespace, state, finished_at, id, task) WHERE finished_at IS NOT NULL;
CREATE INDEX onejob_kept ON onejob_jobs (namespace, kept_until, id) WHERE kept_until IS NOT NULL;

-- Jobs in states that most jobs never are in, in the order of their ids, so that the newest of them are found.
CREATE INDEX onejob_listed ON onejob_jobs (namespace, state, id)
    WHERE state IN ('scheduled', 'pending', 'retryable', 'cancelled', 'discarded');

-- Dead letters that are replayed automatically; 256 is Trait.RETURNS.
CREATE INDEX onejob_returning ON onejob_jobs (namespace, run_at, id)
    WHERE state = 'discarded' AND traits & 256 <> 0;

-- Which jobs wait for a chain: the blockers of every job, by chain.
CREATE TABLE onejob_waits (
    chain_id TEXT NOT NULL,
    job_id TEXT NOT NULL,
    PRIMARY KEY (chain_id, job_id)
) WITHOUT ROWID;
CREATE INDEX onejob_waiting ON onejob_waits (job_id);

CREATE TABLE onejob_marks (
    key BLOB NOT NULL PRIMARY KEY,
    version INTEGER,
    job TEXT NOT NULL,
    void INTEGER NOT NULL,
    touched_at INTEGER NOT NULL,
    prior_version INTEGER,
    prior_job TEXT
) WITHOUT ROWID;

-- When jobs of queues with a rate have started.
CREATE TABLE onejob_starts (
    namespace TEXT NOT NULL,
    queue TEXT NOT NULL,
    at INTEGER NOT NULL
);
CREATE INDEX onejob_started ON onejob_starts (namespace, queue, at);

CREATE TABLE onejob_tallies (
    namespace TEXT NOT NULL,
    task TEXT NOT NULL,
    outcome TEXT NOT NULL,
    job_id TEXT NOT NULL,
    count INTEGER NOT NULL,
    last_at INTEGER NOT NULL,
    first_at INTEGER NOT NULL,
    last_by TEXT NOT NULL, -- what made the last request
    PRIMARY KEY (namespace, job_id, task, outcome)
) WITHOUT ROWID;

-- What is kept for a while about absorbed requests, workers and manual changes.
CREATE TABLE onejob_observations (
    namespace TEXT NOT NULL,
    kind TEXT NOT NULL,
    id TEXT NOT NULL,
    subject TEXT NOT NULL,
    at INTEGER NOT NULL,
    data TEXT NOT NULL,
    PRIMARY KEY (namespace, kind, id)
) WITHOUT ROWID;
CREATE INDEX onejob_observed ON onejob_observations (namespace, kind, at);
CREATE INDEX onejob_observed_subjects ON onejob_observations (namespace, kind, subject, at);

CREATE TABLE onejob_settings (
    namespace TEXT NOT NULL,
    kind TEXT NOT NULL,
    name TEXT NOT NULL,
    value BLOB NOT NULL,
    PRIMARY KEY (namespace, kind, name)
) WITHOUT ROWID;
