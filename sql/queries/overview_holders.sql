-- The claims that hold running jobs: token, kind, how many, and seconds until the next of their leases lapses.
-- Index: async_jobs_running.
SELECT locked_by, kind, count(*), extract(epoch FROM min(lease_expires_at) - now())::float8
FROM async_jobs
WHERE status = 'in-progress' AND locked_by IS NOT NULL
GROUP BY locked_by, kind
ORDER BY locked_by, kind
