-- Jobs, the marks of versioned keys, and the counters of absorbed requests.
-- Times are microseconds since 1970 in UTC: to_timestamp(run_at / 1e6) shows one. Keys are 32-byte hashes.

CREATE TABLE onejob_jobs (
    id TEXT COLLATE "C" PRIMARY KEY,
    namespace TEXT NOT NULL,
    task TEXT NOT NULL,
    queue TEXT NOT NULL,
    state TEXT NOT NULL CHECK (state IN ('scheduled', 'available', 'pending', 'active', 'retryable',
                                         'completed', 'cancelled', 'discarded')),
    priority BIGINT NOT NULL,
    run_at BIGINT NOT NULL,
    place BIGINT NOT NULL,
    created_at BIGINT NOT NULL,
    args TEXT NOT NULL,
    meta TEXT NOT NULL,
    payload_digest BYTEA NOT NULL,
    retry TEXT NOT NULL,
    chain_id TEXT NOT NULL,
    timeout DOUBLE PRECISION,
    attempt BIGINT NOT NULL CHECK (attempt >= 0),
    started_at BIGINT,
    finished_at BIGINT,
    key BYTEA,
    held_key BYTEA,
    next_key BYTEA,
    holds BIGINT NOT NULL,
    traits BIGINT NOT NULL,
    within DOUBLE PRECISION,
    held_at BIGINT,
    holds_until BIGINT,
    latest_at BIGINT,
    version BIGINT,
    chain_index BIGINT NOT NULL,
    parent_id TEXT,
    superseded_by TEXT,
    reason TEXT,
    token BIGINT NOT NULL,
    worker TEXT,
    lease_until BIGINT,
    cancel_requested BOOLEAN NOT NULL,
    errors TEXT NOT NULL,
    result TEXT,
    progress TEXT
) WITH (
    fillfactor = 90,
    autovacuum_vacuum_scale_factor = 0.02,
    autovacuum_analyze_scale_factor = 0.02
);

-- The hold is a column of the job's own row: at most one holder and one successor per key, and no orphan.
CREATE UNIQUE INDEX onejob_held ON onejob_jobs (held_key) WHERE held_key IS NOT NULL;
CREATE UNIQUE INDEX onejob_next ON onejob_jobs (next_key) WHERE next_key IS NOT NULL;
CREATE UNIQUE INDEX onejob_chain ON onejob_jobs (chain_id, chain_index) WHERE chain_index > 0;

-- Of those who have let go of their key, or never had it: each version of a row enters every index that it belongs to.
CREATE INDEX onejob_key ON onejob_jobs (key) WHERE key IS NOT NULL AND held_key IS NULL AND next_key IS NULL;
CREATE INDEX onejob_due ON onejob_jobs (namespace, queue, priority DESC, run_at, place)
    WHERE state = 'available';
CREATE INDEX onejob_timed ON onejob_jobs (run_at) WHERE state IN ('scheduled', 'retryable');
CREATE INDEX onejob_leased ON onejob_jobs (lease_until) WHERE state = 'active';
CREATE INDEX onejob_ended ON onejob_jobs (finished_at) WHERE finished_at IS NOT NULL;

CREATE TABLE onejob_marks (
    key BYTEA PRIMARY KEY,
    version BIGINT,
    job TEXT NOT NULL,
    void BOOLEAN NOT NULL,
    touched_at BIGINT NOT NULL,
    prior_version BIGINT,
    prior_job TEXT
);

CREATE TABLE onejob_tallies (
    namespace TEXT NOT NULL,
    task TEXT NOT NULL,
    outcome TEXT NOT NULL,
    job_id TEXT NOT NULL,
    part TEXT NOT NULL, -- empty, or what one caller's transaction has counted: the next flush adds it up
    count BIGINT NOT NULL,
    last_at BIGINT NOT NULL,
    PRIMARY KEY (namespace, task, outcome, job_id, part)
);
CREATE INDEX onejob_apart ON onejob_tallies (part) WHERE part <> '';

-- One row, by which a caller's connection is known to be one to this very database.
CREATE TABLE onejob_installation (id TEXT NOT NULL);
INSERT INTO onejob_installation VALUES (gen_random_uuid()::text);
