-- compatible: additive
-- The table async_jobs with the 22 columns a Haste server knows, made or adopted, and what the
-- lease protocol adds: defaults for every column, the shape of a row, indexes and notifications.
-- Of an adopted table no row is changed; checks that its old rows break stay NOT VALID.

DO $$ BEGIN
  CREATE TYPE async_job_status AS ENUM
    ('accepted', 'in-progress', 'completed', 'failed', 'cancelled');
EXCEPTION WHEN duplicate_object THEN NULL;
END $$;

-- An id for rows written by hand: 26 characters of 0-9a-z, from two random UUIDs (about 130 bits).
CREATE OR REPLACE FUNCTION async_jobs_new_id() RETURNS text LANGUAGE sql VOLATILE AS $$
  SELECT left(lower(translate(encode(sha256(
    (gen_random_uuid()::text || gen_random_uuid()::text)::bytea), 'base64'), '+/=', 'xz')), 26)
$$;

CREATE TABLE IF NOT EXISTS async_jobs (
  id text PRIMARY KEY,
  tenant text NOT NULL,
  project text NOT NULL,
  kind text NOT NULL,
  status async_job_status NOT NULL DEFAULT 'accepted',
  request text NOT NULL DEFAULT '',
  parameters jsonb NOT NULL DEFAULT '{}',
  claims jsonb NOT NULL DEFAULT '{}',
  submitted_by text NOT NULL DEFAULT '',
  progress text,
  output jsonb,
  output_content_type text,
  error jsonb,
  attempts integer NOT NULL DEFAULT 0,
  max_attempts integer NOT NULL DEFAULT 3,
  locked_by text,
  lease_expires_at timestamptz,
  created_at timestamptz NOT NULL DEFAULT now(),
  updated_at timestamptz NOT NULL DEFAULT now(),
  started_at timestamptz,
  finished_at timestamptz,
  expires_at timestamptz NOT NULL DEFAULT now() + interval '1 day'
);

ALTER TABLE async_jobs
  ALTER COLUMN id SET DEFAULT async_jobs_new_id(),
  ALTER COLUMN status SET DEFAULT 'accepted',
  ALTER COLUMN request SET DEFAULT '',
  ALTER COLUMN parameters SET DEFAULT '{}',
  ALTER COLUMN claims SET DEFAULT '{}',
  ALTER COLUMN submitted_by SET DEFAULT '',
  ALTER COLUMN attempts SET DEFAULT 0,
  ALTER COLUMN max_attempts SET DEFAULT 3,
  ALTER COLUMN created_at SET DEFAULT now(),
  ALTER COLUMN updated_at SET DEFAULT now(),
  ALTER COLUMN expires_at SET DEFAULT now() + interval '1 day';

-- retention: the job's own, from completion; null: the worker's.
-- finished_by: the token that finished the job, so that a repeated finish is recognised.
-- hand_backs: how often an attempt was given back, so that max_attempts cannot be evaded.
ALTER TABLE async_jobs
  ADD COLUMN IF NOT EXISTS retention interval,
  ADD COLUMN IF NOT EXISTS finished_by text,
  ADD COLUMN IF NOT EXISTS hand_backs integer NOT NULL DEFAULT 0;

ALTER TABLE async_jobs
  DROP CONSTRAINT IF EXISTS async_jobs_lock_whole,
  DROP CONSTRAINT IF EXISTS async_jobs_running_is_held,
  DROP CONSTRAINT IF EXISTS async_jobs_queued_is_free,
  DROP CONSTRAINT IF EXISTS async_jobs_attempts_in_range,
  DROP CONSTRAINT IF EXISTS async_jobs_output_when_completed,
  DROP CONSTRAINT IF EXISTS async_jobs_retention_in_range,
  ADD CONSTRAINT async_jobs_lock_whole
    CHECK ((locked_by IS NULL) = (lease_expires_at IS NULL)) NOT VALID,
  ADD CONSTRAINT async_jobs_running_is_held
    CHECK (status <> 'in-progress' OR locked_by IS NOT NULL) NOT VALID,
  ADD CONSTRAINT async_jobs_queued_is_free
    CHECK (status <> 'accepted' OR (locked_by IS NULL AND attempts < max_attempts)) NOT VALID,
  ADD CONSTRAINT async_jobs_attempts_in_range
    CHECK (attempts BETWEEN 0 AND max_attempts) NOT VALID,
  ADD CONSTRAINT async_jobs_output_when_completed
    CHECK (output IS NULL OR status = 'completed') NOT VALID,
  -- Beyond that, now() plus a retention is no timestamp, and a sweep would fail for everybody.
  ADD CONSTRAINT async_jobs_retention_in_range
    CHECK (retention BETWEEN interval '0' AND interval '3650 days') NOT VALID;

CREATE INDEX IF NOT EXISTS async_jobs_queue
  ON async_jobs (kind, created_at, id) WHERE status = 'accepted';
-- First how many attempts are left (none, one, more): each is looked for by itself, and after an
-- outage there may be tens of thousands of the others. bigint, because adopted rows hold anything.
CREATE INDEX IF NOT EXISTS async_jobs_running
  ON async_jobs (least(max_attempts::bigint - attempts, 2), kind, lease_expires_at)
  WHERE status = 'in-progress';
CREATE INDEX IF NOT EXISTS async_jobs_expiry
  ON async_jobs (expires_at);
-- Every tenant is >= '', but only who says so may use this index. Without it the planner would know
-- that it holds the queued and the running jobs, and where its statistics are from a time without
-- any, read all of it for a claim or a finish (measured: 640 ms a finish at 1M queued).
CREATE INDEX IF NOT EXISTS async_jobs_live
  ON async_jobs (tenant, project) WHERE status IN ('accepted', 'in-progress') AND tenant >= '';
-- For lists only, likewise: whoever looks for one job, or counts the live ones, must not walk all jobs
-- of a project (measured: 5 ms a cancel at 50,000).
CREATE INDEX IF NOT EXISTS async_jobs_project
  ON async_jobs (tenant, project, created_at DESC, id DESC) WHERE (project >= '') IS TRUE;

-- Rows come and go fast: vacuum after a fixed number of dead rows, not after a share of the table.
ALTER TABLE async_jobs SET (
  autovacuum_vacuum_scale_factor = 0.02,
  autovacuum_vacuum_threshold = 1000,
  autovacuum_analyze_scale_factor = 0.05,
  autovacuum_vacuum_cost_delay = 1
);

-- Wake-ups are hints with a poll behind them. ALTER DATABASE ... SET hastetrio.notify = 'off'
-- silences them (NOTIFY takes a database-wide lock at commit). A payload may have 8000 bytes.
CREATE OR REPLACE FUNCTION async_jobs_notify_queued() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF current_setting('hastetrio.notify', true) IS DISTINCT FROM 'off' THEN
    PERFORM pg_notify('async_jobs_queued', kind) FROM (
      SELECT DISTINCT kind FROM fresh WHERE status = 'accepted' AND octet_length(kind) < 2000) k;
  END IF;
  RETURN NULL;
END $$;

CREATE OR REPLACE FUNCTION async_jobs_notify_changed() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF current_setting('hastetrio.notify', true) IS DISTINCT FROM 'off' THEN
    IF NEW.status = 'accepted' AND octet_length(NEW.kind) < 2000 THEN
      PERFORM pg_notify('async_jobs_queued', NEW.kind);
    ELSIF NEW.status = 'cancelled' AND octet_length(NEW.id) < 2000 THEN
      PERFORM pg_notify('async_jobs_cancelled', NEW.id);
    END IF;
  END IF;
  RETURN NULL;
END $$;

DROP TRIGGER IF EXISTS async_jobs_inserted ON async_jobs;
CREATE TRIGGER async_jobs_inserted AFTER INSERT ON async_jobs
  REFERENCING NEW TABLE AS fresh
  FOR EACH STATEMENT EXECUTE FUNCTION async_jobs_notify_queued();

-- Row triggers with a WHEN, not a statement trigger: that would copy every renewed and finished
-- row into a transition table, and PostgreSQL sends equal notifications of a transaction once.
DROP TRIGGER IF EXISTS async_jobs_handed_back ON async_jobs;
CREATE TRIGGER async_jobs_handed_back AFTER UPDATE OF status ON async_jobs FOR EACH ROW
  WHEN (OLD.status = 'in-progress' AND NEW.status = 'accepted')
  EXECUTE FUNCTION async_jobs_notify_changed();

DROP TRIGGER IF EXISTS async_jobs_cancelled ON async_jobs;
CREATE TRIGGER async_jobs_cancelled AFTER UPDATE OF status ON async_jobs FOR EACH ROW
  WHEN (OLD.status = 'in-progress' AND NEW.status = 'cancelled')
  EXECUTE FUNCTION async_jobs_notify_changed();
