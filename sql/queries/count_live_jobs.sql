-- The jobs of a project that are queued or running; expired ones do not count, swept or not.
-- Index: async_jobs_live.
SELECT count(*) FROM async_jobs
WHERE tenant = %(tenant)s AND project = %(project)s
  -- IS TRUE keeps the planner from async_jobs_expiry, where its statistics are of another time.
  AND tenant >= '' AND status IN ('accepted', 'in-progress') AND (expires_at > now()) IS TRUE
