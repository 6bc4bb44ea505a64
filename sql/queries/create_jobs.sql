-- Queues jobs of one project, all or none, unless the project then had more live jobs than the limit (null: no limit). One whose unique key a live job has is left out.
-- Index: async_jobs_live counts the live jobs, async_jobs_unique_key finds the keys; without a limit and a key nothing is read.
INSERT INTO async_jobs AS j (id, tenant, project, kind, request, parameters, claims, submitted_by,
                             retention, max_attempts, created_at, run_at, unique_key, expires_at)
SELECT a.id, %(tenant)s, %(project)s, a.kind, a.request, a.parameters::jsonb, a.claims::jsonb,
       a.submitted_by, make_interval(secs => a.retention), a.max_attempts,
       -- One transaction has one now(): a microsecond apart, so that oldest first keeps their order.
       now() + make_interval(secs => a.place * 1e-6), coalesce(a.run_at, now()), a.unique_key,
       greatest(a.run_at, now()) + make_interval(secs => a.retention)
FROM unnest(%(ids)s::text[], %(kinds)s::text[], %(requests)s::text[], %(parameters)s::text[],
            %(claims)s::text[], %(submitters)s::text[], %(retentions)s::float8[],
            %(max_attempts)s::int[], %(run_ats)s::timestamptz[], %(unique_keys)s::text[],
            %(places)s::int[])
  AS a (id, kind, request, parameters, claims, submitted_by, retention, max_attempts, run_at,
        unique_key, place)
WHERE %(live_limit)s::bigint IS NULL OR %(live_limit)s::bigint > (
  -- Not counted beyond the limit: a project may have a million.
  SELECT count(*) FROM (
    SELECT 1 FROM async_jobs l
    WHERE l.tenant = %(tenant)s AND l.project = %(project)s
      AND l.tenant >= '' AND l.status IN ('accepted', 'in-progress')
      AND (l.expires_at > now()) IS TRUE
    LIMIT %(live_limit)s::bigint) live)
-- Two that queue the same keys at one time wait for each other's in one order, or they would deadlock.
ORDER BY a.unique_key, a.kind, a.place
ON CONFLICT (tenant, project, kind, unique_key)
  WHERE unique_key IS NOT NULL AND status IN ('accepted', 'in-progress') DO NOTHING
RETURNING {job}
