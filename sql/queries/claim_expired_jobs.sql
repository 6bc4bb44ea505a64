-- Takes expired rows that nobody holds for their clean-up, adding no attempt; a live one becomes cancelled, so that it can never run again.
-- Index: async_jobs_expiry. Never waits for a lock.
WITH due AS MATERIALIZED (
  SELECT id FROM async_jobs
  WHERE expires_at <= now() AND (lease_expires_at IS NULL OR lease_expires_at < now())
    AND kind = ANY (%(kinds)s::text[])
  ORDER BY expires_at LIMIT %(limit)s::int FOR NO KEY UPDATE SKIP LOCKED
)
UPDATE async_jobs j
SET locked_by = %(token)s,
    lease_expires_at = clock_timestamp() + make_interval(secs => %(lease)s),
    updated_at = now(),
    -- An adopted row may break the checks; it is put right, or it would stop the sweep for ever.
    output = CASE WHEN j.status = 'completed' THEN j.output END,
    attempts = greatest(least(j.attempts, j.max_attempts), 0),
    max_attempts = greatest(j.max_attempts, 0),
    status = CASE WHEN j.status IN ('accepted', 'in-progress') THEN 'cancelled' ELSE j.status END
WHERE j.id = ANY (ARRAY(SELECT id FROM due))
RETURNING {job}
