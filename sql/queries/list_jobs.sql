-- A page of a project's jobs that have not expired, newest first; the page goes on behind a given job.
-- Index: async_jobs_project, walked from the newest on; a filter that few jobs pass walks more of it.
SELECT {job} FROM async_jobs j
WHERE j.tenant = %(tenant)s AND j.project = %(project)s AND (j.project >= '') IS TRUE
  AND (j.expires_at > now()) IS TRUE
  AND (%(status)s::text IS NULL OR j.status = %(status)s::text::async_job_status)
  AND (%(kind)s::text IS NULL OR j.kind = %(kind)s)
  AND (%(submitted_by)s::text IS NULL OR j.submitted_by = %(submitted_by)s)
  AND (%(before_id)s::text IS NULL
       OR (j.created_at, j.id) < (%(before_created_at)s::timestamptz, %(before_id)s))
ORDER BY j.created_at DESC, j.id DESC
LIMIT %(limit)s::int
