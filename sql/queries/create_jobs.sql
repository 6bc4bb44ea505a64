-- Queues jobs of one project, all or none, unless the project then had more live jobs than the limit (null: no limit).
-- Index: async_jobs_live counts the live jobs; without a limit nothing is read.
INSERT INTO async_jobs AS j (id, tenant, project, kind, request, parameters, claims, submitted_by,
                             retention, max_attempts, created_at, expires_at)
SELECT a.id, %(tenant)s, %(project)s, a.kind, a.request, a.parameters::jsonb, a.claims::jsonb,
       a.submitted_by, make_interval(secs => a.retention), a.max_attempts,
       -- One transaction has one now(): a microsecond apart, so that oldest first keeps their order.
       now() + make_interval(secs => (a.place - 1) * 1e-6), now() + make_interval(secs => a.retention)
FROM unnest(%(ids)s::text[], %(kinds)s::text[], %(requests)s::text[], %(parameters)s::text[],
            %(claims)s::text[], %(submitters)s::text[], %(retentions)s::float8[],
            %(max_attempts)s::int[])
  WITH ORDINALITY
  AS a (id, kind, request, parameters, claims, submitted_by, retention, max_attempts, place)
WHERE %(live_limit)s::bigint IS NULL OR %(live_limit)s::bigint > (
  -- Not counted beyond the limit: a project may have a million.
  SELECT count(*) FROM (
    SELECT 1 FROM async_jobs l
    WHERE l.tenant = %(tenant)s AND l.project = %(project)s
      AND l.tenant >= '' AND l.status IN ('accepted', 'in-progress') AND l.expires_at > now()
    LIMIT %(live_limit)s::bigint) live)
RETURNING {job}
