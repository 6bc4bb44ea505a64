-- Deletes expired rows that nobody holds, of kinds that need no clean-up; answers how many.
-- Index: async_jobs_expiry. Never waits for a lock.
WITH due AS MATERIALIZED (
  SELECT id FROM async_jobs
  WHERE expires_at <= now() AND (lease_expires_at IS NULL OR lease_expires_at < now())
    AND kind = ANY (%(kinds)s::text[])
  ORDER BY expires_at LIMIT %(limit)s::int FOR UPDATE SKIP LOCKED
),
gone AS (
  DELETE FROM async_jobs j WHERE j.id = ANY (ARRAY(SELECT id FROM due)) RETURNING 1
)
SELECT count(*) FROM gone
