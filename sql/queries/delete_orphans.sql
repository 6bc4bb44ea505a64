-- Deletes rows that expired seven days ago or more and that nobody holds: no running worker registers their kinds. Answers kinds.
-- Index: async_jobs_expiry. Never waits for a lock.
WITH due AS MATERIALIZED (
  SELECT id FROM async_jobs
  WHERE expires_at <= now() - interval '7 days' AND (lease_expires_at IS NULL OR lease_expires_at < now())
  ORDER BY expires_at LIMIT %(limit)s::int FOR UPDATE SKIP LOCKED
)
DELETE FROM async_jobs j WHERE j.id = ANY (ARRAY(SELECT id FROM due)) RETURNING j.kind
