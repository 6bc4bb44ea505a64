-- How many jobs there are of each status and kind, how many of them wait for their time, how long the longest due waits, and how many leases have lapsed.
-- Index: none; reads the table once, for an operator's eye.
SELECT status::text, kind, count(*),
       count(*) FILTER (WHERE status = 'accepted' AND run_at > now()),
       extract(epoch FROM now() - min(run_at) FILTER (WHERE run_at <= now()))::float8,
       count(*) FILTER (WHERE status = 'in-progress' AND lease_expires_at < now())
FROM async_jobs
WHERE expires_at > now()
GROUP BY status, kind
ORDER BY status, kind
