-- Cancels one job and answers the row exactly as it was replaced; whoever holds it keeps it until it lets go.
-- Index: the primary key. Waits for the row's lock, so that what is answered is what was cancelled.
WITH old AS MATERIALIZED (
  SELECT * FROM async_jobs
  WHERE id = %(id)s AND tenant = %(tenant)s AND project = %(project)s
    AND (%(submitted_by)s::text IS NULL OR submitted_by = %(submitted_by)s)
    AND status <> 'cancelled' AND expires_at > now()
  FOR NO KEY UPDATE
),
new AS (
  UPDATE async_jobs n
  SET status = 'cancelled',
      output = NULL,
      output_content_type = NULL,
      error = NULL,
      progress = NULL,
      attempt_errors = NULL,
      -- An adopted row may break the checks; it is put right, or nobody could cancel it.
      attempts = greatest(least(n.attempts, n.max_attempts), 0),
      max_attempts = greatest(n.max_attempts, 0),
      locked_by = CASE WHEN n.lease_expires_at IS NOT NULL THEN n.locked_by END,
      lease_expires_at = CASE WHEN n.locked_by IS NOT NULL THEN n.lease_expires_at END,
      expires_at = now(),
      finished_at = coalesce(n.finished_at, now()),
      updated_at = now()
  FROM old
  WHERE n.id = old.id
  RETURNING n.id
)
SELECT {job} FROM old j JOIN new USING (id)
