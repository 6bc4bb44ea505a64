-- One job of a project, until it expires or is cancelled for good: a cancelled job has expired.
-- Index: the primary key.
SELECT {job} FROM async_jobs j
WHERE j.id = %(id)s AND j.tenant = %(tenant)s AND j.project = %(project)s
  AND (%(submitted_by)s::text IS NULL OR j.submitted_by = %(submitted_by)s)
  AND j.expires_at > now()
