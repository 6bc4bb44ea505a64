-- Fails jobs whose lease lapsed on their last attempt and that have not expired; answers their ids.
-- Index: async_jobs_running (the running rows only). Never waits for a lock.
WITH due AS MATERIALIZED (
  SELECT id FROM async_jobs
  WHERE status = 'in-progress' AND least(max_attempts::bigint - attempts, 2) <= 0
    AND lease_expires_at < now() AND (expires_at > now()) IS TRUE
  -- In the index's order: a sort would read all of them for each hundred.
  ORDER BY least(max_attempts::bigint - attempts, 2), kind, lease_expires_at
  LIMIT %(limit)s::int FOR NO KEY UPDATE SKIP LOCKED
)
UPDATE async_jobs j
SET status = 'failed',
    error = %(outcome)s::jsonb,
    -- An adopted row may break the checks; it is put right, or it would stop the sweep for ever.
    output = NULL,
    attempts = least(j.attempts, greatest(j.max_attempts, 0)),
    max_attempts = greatest(j.max_attempts, 0),
    locked_by = NULL,
    lease_expires_at = NULL,
    finished_at = now(),
    updated_at = now(),
    expires_at = now() + coalesce(j.retention, make_interval(secs => %(retention)s))
WHERE j.id = ANY (ARRAY(SELECT id FROM due))
RETURNING j.id
