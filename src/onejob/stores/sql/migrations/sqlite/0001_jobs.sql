-- Jobs, the marks of versioned keys, and the counters of absorbed requests.
-- Times are microseconds since 1970 in UTC. Keys are 32-byte hashes.

CREATE TABLE onejob_jobs (
    id TEXT PRIMARY KEY,
    namespace TEXT NOT NULL,
    task TEXT NOT NULL,
    queue TEXT NOT NULL,
    state TEXT NOT NULL CHECK (state IN ('scheduled', 'available', 'pending', 'active', 'retryable',
                                         'completed', 'cancelled', 'discarded')),
    priority INTEGER NOT NULL,
    run_at INTEGER NOT NULL,
    place INTEGER NOT NULL,
    created_at INTEGER NOT NULL,
    args BLOB NOT NULL,
    meta BLOB NOT NULL,
    payload_digest BLOB NOT NULL,
    retry TEXT NOT NULL,
    chain_id TEXT NOT NULL,
    timeout REAL,
    attempt INTEGER NOT NULL CHECK (attempt >= 0),
    started_at INTEGER,
    finished_at INTEGER,
    key BLOB,
    held_key BLOB,
    next_key BLOB,
    holds INTEGER NOT NULL,
    traits INTEGER NOT NULL,
    within REAL,
    held_at INTEGER,
    holds_until INTEGER,
    latest_at INTEGER,
    version INTEGER,
    chain_index INTEGER NOT NULL,
    parent_id TEXT,
    superseded_by TEXT,
    reason TEXT,
    token INTEGER NOT NULL,
    worker TEXT,
    lease_until INTEGER,
    cancel_requested INTEGER NOT NULL,
    errors BLOB NOT NULL,
    result BLOB,
    progress BLOB
) WITHOUT ROWID;

-- The hold is a column of the job's own row: at most one holder and one successor per key, and no orphan.
CREATE UNIQUE INDEX onejob_held ON onejob_jobs (held_key) WHERE held_key IS NOT NULL;
CREATE UNIQUE INDEX onejob_next ON onejob_jobs (next_key) WHERE next_key IS NOT NULL;
CREATE UNIQUE INDEX onejob_chain ON onejob_jobs (chain_id, chain_index) WHERE chain_index > 0;

CREATE INDEX onejob_key ON onejob_jobs (key) WHERE key IS NOT NULL;
CREATE INDEX onejob_due ON onejob_jobs (namespace, queue, priority DESC, run_at, place)
    WHERE state = 'available';
CREATE INDEX onejob_timed ON onejob_jobs (run_at) WHERE state IN ('scheduled', 'retryable');
CREATE INDEX onejob_leased ON onejob_jobs (lease_until) WHERE state = 'active';
CREATE INDEX onejob_ended ON onejob_jobs (finished_at) WHERE finished_at IS NOT NULL;

CREATE TABLE onejob_marks (
    key BLOB PRIMARY KEY,
    version INTEGER,
    job TEXT NOT NULL,
    void INTEGER NOT NULL,
    touched_at INTEGER NOT NULL,
    prior_version INTEGER,
    prior_job TEXT
) WITHOUT ROWID;

CREATE TABLE onejob_tallies (
    namespace TEXT NOT NULL,
    task TEXT NOT NULL,
    outcome TEXT NOT NULL,
    job_id TEXT NOT NULL,
    count INTEGER NOT NULL,
    last_at INTEGER NOT NULL,
    PRIMARY KEY (namespace, task, outcome, job_id)
) WITHOUT ROWID;
