-- How many jobs there are of each status and kind, how long the oldest waits, and how many leases have lapsed.
-- Index: none; reads the table once, for an operator's eye.
SELECT status::text, kind, count(*),
       extract(epoch FROM now() - min(created_at))::float8,
       count(*) FILTER (WHERE status = 'in-progress' AND lease_expires_at < now())
FROM async_jobs
WHERE expires_at > now()
GROUP BY status, kind
ORDER BY status, kind
