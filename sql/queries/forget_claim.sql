-- Hands back what a claim took whose answer never came: queued again, the attempt given back, not counted as a hand-back.
-- Index: async_jobs_running, read whole (the running rows only); rare, and never waits for a lock.
WITH due AS MATERIALIZED (
  SELECT id FROM async_jobs
  WHERE status = 'in-progress' AND locked_by = %(token)s
  ORDER BY id FOR NO KEY UPDATE SKIP LOCKED
)
UPDATE async_jobs j
SET status = 'accepted',
    attempts = greatest(j.attempts - 1, 0),
    locked_by = NULL,
    lease_expires_at = NULL,
    updated_at = now()
FROM due
WHERE j.id = due.id
RETURNING j.id
