-- The jobs of a project that are queued or running; expired ones do not count, swept or not.
-- Index: async_jobs_live.
SELECT count(*) FROM async_jobs
WHERE tenant = %(tenant)s AND project = %(project)s
  AND tenant >= '' AND status IN ('accepted', 'in-progress') AND expires_at > now()
