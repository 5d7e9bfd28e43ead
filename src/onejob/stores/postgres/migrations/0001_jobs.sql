-- Jobs, the marks of versioned keys, settings, and the counters of absorbed requests.
-- Times are microseconds since 1970 in UTC: to_timestamp(run_at / 1e6) shows one. Keys are 32-byte hashes.
-- policy and more are JSON objects, as text: more::json->>'reason' shows one field.

CREATE TABLE onejob_jobs (
    id TEXT COLLATE "C" PRIMARY KEY,
    namespace TEXT NOT NULL,
    task TEXT NOT NULL,
    queue TEXT NOT NULL,
    state TEXT NOT NULL,
    priority BIGINT NOT NULL,
    run_at BIGINT NOT NULL,
    place BIGINT NOT NULL,
    created_at BIGINT NOT NULL,
    args TEXT NOT NULL,
    meta TEXT, -- NULL if empty
    payload_digest BYTEA NOT NULL,
    chain_id TEXT, -- NULL if it is the job's own id
    chain_index BIGINT NOT NULL,
    parent_id TEXT,
    expires_at BIGINT,
    partition TEXT,
    key BYTEA,
    stand BIGINT, -- 0: it holds the key; 1: it waits behind the holder; NULL: neither
    traits BIGINT NOT NULL,
    held_at BIGINT,
    attempt BIGINT NOT NULL,
    token BIGINT NOT NULL,
    revision BIGINT NOT NULL,
    worker TEXT,
    lease_until BIGINT,
    cancel_requested BOOLEAN NOT NULL,
    started_at BIGINT,
    finished_at BIGINT,
    kept_until BIGINT,
    result TEXT,
    policy TEXT NOT NULL,
    more TEXT
) WITH (
    fillfactor = 90,
    autovacuum_vacuum_scale_factor = 0.02,
    autovacuum_analyze_scale_factor = 0.02
);

-- One holder and one successor per key; and the jobs that do not stand for it, in an index of their
-- own, so that held keys are found among any number of ended jobs.
CREATE UNIQUE INDEX onejob_key ON onejob_jobs (key, stand) WHERE stand IS NOT NULL;
CREATE INDEX onejob_key_history ON onejob_jobs (key) WHERE key IS NOT NULL AND stand IS NULL;
-- The jobs after the first of a chain.
CREATE UNIQUE INDEX onejob_chain ON onejob_jobs (chain_id, chain_index) WHERE chain_id IS NOT NULL;

-- Each version of a row enters every index that it belongs to, so all others are partial.
CREATE INDEX onejob_due ON onejob_jobs (namespace, queue, priority DESC, run_at, place, id)
    WHERE state = 'available';
CREATE INDEX onejob_shares ON onejob_jobs (namespace, queue, partition, priority DESC, run_at, place, id)
    WHERE state = 'available' AND partition IS NOT NULL;
CREATE INDEX onejob_timed ON onejob_jobs (namespace, run_at) WHERE state IN ('scheduled', 'retryable');
CREATE INDEX onejob_pending ON onejob_jobs (namespace, id) WHERE state = 'pending';
CREATE INDEX onejob_leased ON onejob_jobs (namespace, lease_until) WHERE state = 'active';
CREATE INDEX onejob_expiring ON onejob_jobs (namespace, expires_at, id)
    WHERE expires_at IS NOT NULL AND state IN ('scheduled', 'available', 'pending', 'retryable');
CREATE INDEX onejob_ended ON onejob_jobs (namespace, state, finished_at, id) WHERE finished_at IS NOT NULL;
CREATE INDEX onejob_prunable ON onejob_jobs (namespace, kept_until, id) WHERE kept_until IS NOT NULL;
-- Jobs in states that most jobs never are in, in the order of their ids, so that the newest of them are found.
CREATE INDEX onejob_listed ON onejob_jobs (namespace, state, id)
    WHERE state IN ('scheduled', 'pending', 'retryable', 'cancelled', 'discarded');
-- Dead letters that are replayed automatically; 256 is Trait.RETURNS.
CREATE INDEX onejob_returning ON onejob_jobs (namespace, run_at, id)
    WHERE state = 'discarded' AND traits & 256 <> 0;

CREATE TABLE onejob_marks (
    key BYTEA PRIMARY KEY,
    version BIGINT,
    job TEXT NOT NULL,
    void BOOLEAN NOT NULL,
    touched_at BIGINT NOT NULL,
    prior_version BIGINT,
    prior_job TEXT
);

-- Which jobs wait for a chain: the blockers of every job, the other way round.
CREATE TABLE onejob_waits (
    chain_id TEXT NOT NULL,
    job_id TEXT NOT NULL,
    PRIMARY KEY (chain_id, job_id)
);
CREATE INDEX onejob_waiting ON onejob_waits (job_id);

CREATE FUNCTION onejob_note_waits() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'UPDATE' AND OLD.more::json->>'blockers' = NEW.more::json->>'blockers' THEN
        RETURN NULL; -- how one of them has ended is in the same column
    END IF;
    IF TG_OP <> 'INSERT' THEN
        DELETE FROM onejob_waits WHERE job_id = OLD.id;
    END IF;
    IF TG_OP <> 'DELETE' AND NEW.more::json->'blockers' IS NOT NULL THEN
        INSERT INTO onejob_waits (chain_id, job_id)
        SELECT value, NEW.id FROM json_array_elements_text(NEW.more::json->'blockers') ON CONFLICT DO NOTHING;
    END IF;
    RETURN NULL;
END $$;

CREATE TRIGGER onejob_waits_begin AFTER INSERT ON onejob_jobs
    FOR EACH ROW WHEN (NEW.more LIKE '%"blockers":%') EXECUTE FUNCTION onejob_note_waits();
CREATE TRIGGER onejob_waits_change AFTER UPDATE OF more ON onejob_jobs
    FOR EACH ROW WHEN (
        NEW.more IS DISTINCT FROM OLD.more
        AND (NEW.more LIKE '%"blockers":%' OR OLD.more LIKE '%"blockers":%')
    ) EXECUTE FUNCTION onejob_note_waits();
CREATE TRIGGER onejob_waits_end AFTER DELETE ON onejob_jobs
    FOR EACH ROW WHEN (OLD.more LIKE '%"blockers":%') EXECUTE FUNCTION onejob_note_waits();

CREATE TABLE onejob_settings (
    namespace TEXT NOT NULL,
    kind TEXT NOT NULL,
    name TEXT NOT NULL,
    value BYTEA NOT NULL,
    PRIMARY KEY (namespace, kind, name)
);

-- When jobs of queues with a rate have started.
CREATE TABLE onejob_starts (
    namespace TEXT NOT NULL,
    queue TEXT NOT NULL,
    at BIGINT NOT NULL
);
CREATE INDEX onejob_started ON onejob_starts (namespace, queue, at);

CREATE TABLE onejob_tallies (
    namespace TEXT NOT NULL,
    task TEXT NOT NULL,
    outcome TEXT NOT NULL,
    job_id TEXT NOT NULL,
    part TEXT NOT NULL, -- empty, or a count of one caller's transaction, which the next flush adds up
    count BIGINT NOT NULL,
    last_at BIGINT NOT NULL,
    first_at BIGINT NOT NULL,
    last_by TEXT NOT NULL, -- what made the last request
    PRIMARY KEY (namespace, job_id, task, outcome, part)
);
CREATE INDEX onejob_apart ON onejob_tallies (part) WHERE part <> '';

-- What is kept for a while about absorbed requests, workers and manual changes.
CREATE TABLE onejob_observations (
    namespace TEXT NOT NULL,
    kind TEXT NOT NULL,
    id TEXT NOT NULL,
    subject TEXT NOT NULL,
    at BIGINT NOT NULL,
    data TEXT NOT NULL,
    PRIMARY KEY (namespace, kind, id)
);
CREATE INDEX onejob_observed ON onejob_observations (namespace, kind, at, id);
CREATE INDEX onejob_observed_subjects
    ON onejob_observations ((namespace || chr(31) || kind || chr(31) || subject), at, id);

-- One row, by which a caller's connection is recognised as one to this very database.
CREATE TABLE onejob_installation (id TEXT NOT NULL);
INSERT INTO onejob_installation VALUES (gen_random_uuid()::text);
