-- compatible: additive
-- What handler authors ask of a row: a time before which it does not run, a key that makes a kick-off
-- repeatable, what an attempt leaves to the next one, and what went wrong in earlier attempts.
-- No row is changed. A worker that does not know run_at starts such a job early.

-- run_at: no claim before it. Old rows have the moment of this migration, so created_at orders them.
-- unique_key: of the live jobs of a project and kind, one may have it.
-- state: what a handler saved, for the job's next attempt.
-- attempt_errors: the last ten failed attempts, oldest first: [{"attempt", "at", "errors": [texts]}].
ALTER TABLE async_jobs
  ADD COLUMN IF NOT EXISTS run_at timestamptz NOT NULL DEFAULT now(),
  ADD COLUMN IF NOT EXISTS unique_key text,
  ADD COLUMN IF NOT EXISTS state jsonb,
  ADD COLUMN IF NOT EXISTS attempt_errors jsonb;

-- What is due comes first and in order, so that a claim reads no row that waits for its time.
DROP INDEX IF EXISTS async_jobs_queue;
CREATE INDEX IF NOT EXISTS async_jobs_due
  ON async_jobs (kind, run_at, created_at, id) WHERE status = 'accepted';
CREATE UNIQUE INDEX IF NOT EXISTS async_jobs_unique_key
  ON async_jobs (tenant, project, kind, unique_key)
  WHERE unique_key IS NOT NULL AND status IN ('accepted', 'in-progress');

-- The history with one more failed attempt at its end; what is no history, or too long, is put right.
CREATE OR REPLACE FUNCTION async_jobs_add_error(history jsonb, attempt integer, errors jsonb)
RETURNS jsonb LANGUAGE sql STABLE AS $$
  SELECT jsonb_path_query_array(h, '$[last - 8 to last]')
         || jsonb_build_array(jsonb_build_object('attempt', attempt, 'at', now(), 'errors', errors))
  FROM (SELECT CASE WHEN jsonb_typeof(history) = 'array' THEN history ELSE '[]' END) x (h)
$$;

-- As before, but a job that waits for its time wakes nobody.
CREATE OR REPLACE FUNCTION async_jobs_notify_queued() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF current_setting('hastetrio.notify', true) IS DISTINCT FROM 'off' THEN
    PERFORM pg_notify('async_jobs_queued', kind) FROM (
      SELECT DISTINCT kind FROM fresh
      WHERE status = 'accepted' AND run_at <= now() AND octet_length(kind) < 2000) k;
  END IF;
  RETURN NULL;
END $$;

CREATE OR REPLACE FUNCTION async_jobs_notify_changed() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF current_setting('hastetrio.notify', true) IS DISTINCT FROM 'off' THEN
    IF NEW.status = 'accepted' THEN
      IF NEW.run_at <= now() AND octet_length(NEW.kind) < 2000 THEN
        PERFORM pg_notify('async_jobs_queued', NEW.kind);
      END IF;
    ELSIF NEW.status = 'cancelled' AND octet_length(NEW.id) < 2000 THEN
      PERFORM pg_notify('async_jobs_cancelled', NEW.id);
    END IF;
  END IF;
  RETURN NULL;
END $$;
