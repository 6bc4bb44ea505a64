-- Records results, fenced: only of rows in progress, not expired, and held under these tokens. Answers id and token of what it recorded.
-- Index: the primary key, once a row. Rows somebody else has locked are stepped over; state_of_jobs tells what became of them.
WITH mine AS MATERIALIZED (
  SELECT j.id, a.status, a.output, a.content_type, a.error, a.progress, a.retention,
         a.failure
  FROM unnest(%(ids)s::text[], %(tokens)s::text[], %(statuses)s::text[], %(outputs)s::text[],
              %(content_types)s::text[], %(errors)s::text[], %(progress)s::text[],
              %(retentions)s::float8[], %(failures)s::text[])
    AS a (id, token, status, output, content_type, error, progress, retention, failure)
  JOIN async_jobs j ON j.id = a.id AND j.locked_by = a.token
  -- IS TRUE leaves the planner no index but the key's: after a bulk load it may take others for empty.
  WHERE (j.status = 'in-progress' AND j.expires_at > now()) IS TRUE
  ORDER BY j.id FOR NO KEY UPDATE OF j SKIP LOCKED
)
UPDATE async_jobs j
SET status = m.status::async_job_status,
    output = m.output::jsonb,
    output_content_type = m.content_type,
    error = m.error::jsonb,
    progress = coalesce(m.progress, j.progress),
    state = NULL,
    attempt_errors = CASE WHEN m.failure IS NULL THEN j.attempt_errors
      ELSE async_jobs_add_error(j.attempt_errors, j.attempts, m.failure::jsonb) END,
    finished_by = j.locked_by,
    locked_by = NULL,
    lease_expires_at = NULL,
    finished_at = now(),
    updated_at = now(),
    expires_at = now() + coalesce(j.retention, make_interval(secs => m.retention))
FROM mine m
WHERE j.id = m.id
RETURNING j.id, j.finished_by
