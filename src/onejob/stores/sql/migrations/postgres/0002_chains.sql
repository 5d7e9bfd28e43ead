-- Chains that wait for others, shares of a queue, times to be too late, and what is decided at run time.

ALTER TABLE onejob_jobs
    ADD COLUMN expires_at BIGINT,
    ADD COLUMN partition TEXT,
    ADD COLUMN replays BIGINT NOT NULL DEFAULT 0,
    ADD COLUMN blockers TEXT,
    ADD COLUMN arrived TEXT,
    ADD COLUMN following TEXT;

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
);
CREATE INDEX onejob_waiting ON onejob_waits (job_id);

CREATE FUNCTION onejob_note_waits() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP <> 'INSERT' THEN
        DELETE FROM onejob_waits WHERE job_id = OLD.id;
    END IF;
    IF TG_OP <> 'DELETE' AND NEW.blockers IS NOT NULL THEN
        INSERT INTO onejob_waits (chain_id, job_id)
        SELECT value, NEW.id FROM json_array_elements_text(NEW.blockers::json) ON CONFLICT DO NOTHING;
    END IF;
    RETURN NULL;
END $$;

CREATE TRIGGER onejob_waits_begin AFTER INSERT ON onejob_jobs
    FOR EACH ROW WHEN (NEW.blockers IS NOT NULL) EXECUTE FUNCTION onejob_note_waits();
CREATE TRIGGER onejob_waits_change AFTER UPDATE OF blockers ON onejob_jobs
    FOR EACH ROW WHEN (NEW.blockers IS DISTINCT FROM OLD.blockers) EXECUTE FUNCTION onejob_note_waits();
CREATE TRIGGER onejob_waits_end AFTER DELETE ON onejob_jobs
    FOR EACH ROW WHEN (OLD.blockers IS NOT NULL) EXECUTE FUNCTION onejob_note_waits();

CREATE TABLE onejob_settings (
    namespace TEXT NOT NULL,
    kind TEXT NOT NULL,
    name TEXT NOT NULL,
    value BYTEA NOT NULL,
    PRIMARY KEY (namespace, kind, name)
);

-- Jobs that must start by a time, and the line of each partition.
CREATE INDEX onejob_expiring ON onejob_jobs (expires_at, id)
    WHERE expires_at IS NOT NULL AND state IN ('scheduled', 'available', 'pending', 'retryable');
CREATE INDEX onejob_shares ON onejob_jobs (namespace, queue, partition, priority DESC, run_at, place)
    WHERE state = 'available' AND partition IS NOT NULL;

-- When jobs of queues with a rate have started.
CREATE TABLE onejob_starts (
    namespace TEXT NOT NULL,
    queue TEXT NOT NULL,
    at BIGINT NOT NULL
);
CREATE INDEX onejob_started ON onejob_starts (namespace, queue, at);
