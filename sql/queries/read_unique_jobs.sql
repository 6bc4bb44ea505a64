-- The live jobs of a project that have these kinds and unique keys.
-- Index: async_jobs_unique_key, once a key.
SELECT {job}
FROM unnest(%(kinds)s::text[], %(unique_keys)s::text[]) AS a (kind, unique_key)
-- The LIMIT keeps the planner from a join, and the SELECT from async_jobs_live: without statistics it
-- would read all live jobs of the project by either.
CROSS JOIN LATERAL (
  SELECT * FROM async_jobs l
  WHERE l.tenant = (SELECT %(tenant)s::text) AND l.project = %(project)s AND l.kind = a.kind
    AND l.unique_key = a.unique_key AND l.unique_key IS NOT NULL
    AND l.status IN ('accepted', 'in-progress') AND (l.expires_at > now()) IS TRUE
  LIMIT 1
) j
