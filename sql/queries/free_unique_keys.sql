-- Takes these unique keys from jobs that are over, though no sweep has come by; answers their ids.
-- Index: async_jobs_unique_key, once a key.
WITH found AS MATERIALIZED (
  SELECT x.id
  FROM unnest(%(kinds)s::text[], %(unique_keys)s::text[]) AS a (kind, unique_key)
  -- The LIMIT keeps the planner from a join, and the SELECT from async_jobs_live: without statistics it
  -- would read all live jobs of the project by either.
  CROSS JOIN LATERAL (
    SELECT l.id FROM async_jobs l
    WHERE l.tenant = (SELECT %(tenant)s::text) AND l.project = %(project)s AND l.kind = a.kind
      AND l.unique_key = a.unique_key AND l.unique_key IS NOT NULL
      AND l.status IN ('accepted', 'in-progress') AND (l.expires_at <= now()) IS TRUE
    LIMIT 1
  ) x
),
over AS MATERIALIZED (
  SELECT j.id
  FROM async_jobs j
  WHERE j.id = ANY (ARRAY(SELECT id FROM found))
    -- Whoever came first may have taken it. IS TRUE leaves the planner no index but the key's.
    AND (j.unique_key IS NOT NULL AND j.expires_at <= now()) IS TRUE
  ORDER BY j.id FOR NO KEY UPDATE
)
UPDATE async_jobs j
SET unique_key = NULL
WHERE j.id = ANY (ARRAY(SELECT id FROM over))
RETURNING j.id
