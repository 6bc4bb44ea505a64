-- Queues running rows again for later, fenced: only of rows in progress, not expired, and held under these tokens. Answers id and token of what it recorded.
-- Index: the primary key, once a row. Rows somebody else has locked are stepped over; state_of_jobs tells what became of them.
WITH mine AS MATERIALIZED (
  SELECT j.id, now() + make_interval(secs => a.after) AS run_at, a.failure, a.progress, a.retention,
         greatest(j.attempts - a.back::int, 0) AS attempts
  FROM unnest(%(ids)s::text[], %(tokens)s::text[], %(afters)s::float8[], %(give_back)s::bool[],
              %(failures)s::text[], %(progress)s::text[], %(retentions)s::float8[])
    AS a (id, token, after, back, failure, progress, retention)
  JOIN async_jobs j ON j.id = a.id AND j.locked_by = a.token
  WHERE (j.status = 'in-progress' AND j.expires_at > now()) IS TRUE
  ORDER BY j.id FOR NO KEY UPDATE OF j SKIP LOCKED
)
UPDATE async_jobs j
-- A row without attempts left cannot be queued. A worker asks for none; its row may have been changed.
SET status = CASE WHEN m.attempts < j.max_attempts THEN 'accepted' ELSE 'failed' END::async_job_status,
    error = CASE WHEN m.attempts < j.max_attempts THEN j.error ELSE %(outcome)s::jsonb END,
    finished_at = CASE WHEN m.attempts < j.max_attempts THEN j.finished_at ELSE now() END,
    attempts = m.attempts,
    run_at = m.run_at,
    attempt_errors = CASE WHEN m.failure IS NULL THEN j.attempt_errors
      ELSE async_jobs_add_error(j.attempt_errors, j.attempts, m.failure::jsonb) END,
    progress = coalesce(m.progress, j.progress),
    finished_by = j.locked_by,
    locked_by = NULL,
    lease_expires_at = NULL,
    updated_at = now(),
    -- A job that waits for its time is not over before it.
    expires_at = greatest(j.expires_at,
                          m.run_at + coalesce(j.retention, make_interval(secs => m.retention)))
FROM mine m
WHERE j.id = m.id
RETURNING j.id, j.finished_by
