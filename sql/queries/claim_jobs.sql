-- Takes the claimable jobs of the kinds that are due longest under a token; no two claims take the same row, and none waits for another.
-- Index: async_jobs_due and async_jobs_running, walked once per kind; its cost does not grow with the backlog.

-- The look-up takes no locks and counts how many of which kind are among the oldest; then exactly so many
-- are locked. Locking inside the look-up would lock kinds x limit rows and tell other claimers "nothing".
-- Lapsed jobs on their last attempt are counted apart: what kills its process takes along all it ran with.
-- IS TRUE keeps the planner from async_jobs_expiry: after a bulk load it may think that few rows are not over.
WITH alone AS MATERIALIZED (
  -- One kind of which nothing has lapsed: its oldest rows are locked without a look-up before.
  SELECT cardinality(%(kinds)s::text[]) = 1 AND NOT EXISTS (
    SELECT 1 FROM async_jobs a
    WHERE a.status = 'in-progress' AND a.kind = (%(kinds)s::text[])[1]
      AND least(a.max_attempts::bigint - a.attempts, 2) IN (1, 2) AND a.lease_expires_at < now()
      AND (a.expires_at > now()) IS TRUE AND a.id <> ALL (%(exclude)s::text[])
  ) AS yes
),
last AS MATERIALIZED (
  SELECT k.kind, 'last' AS how, x.id, x.run_at, x.created_at
  FROM unnest(%(kinds)s::text[]) AS k (kind)
  CROSS JOIN LATERAL (
    SELECT a.id, a.run_at, a.created_at FROM async_jobs a
    WHERE a.status = 'in-progress' AND a.kind = k.kind AND a.lease_expires_at < now()
      AND least(a.max_attempts::bigint - a.attempts, 2) = 1 AND a.attempts >= 0
      AND (a.expires_at > now()) IS TRUE AND a.id <> ALL (%(exclude)s::text[])
    ORDER BY a.lease_expires_at LIMIT %(last_chances)s::int
  ) x
  WHERE NOT (SELECT yes FROM alone)
  ORDER BY x.run_at, x.created_at, x.id LIMIT %(last_chances)s::int
),
pick AS MATERIALIZED (
  SELECT k.kind, x.how, x.id, x.run_at, x.created_at
  FROM unnest(%(kinds)s::text[]) AS k (kind)
  CROSS JOIN LATERAL (
    (SELECT 'queued' AS how, a.id, a.run_at, a.created_at FROM async_jobs a
     WHERE a.status = 'accepted' AND a.kind = k.kind AND a.run_at <= now()
       AND a.attempts >= 0 AND a.attempts < a.max_attempts
       AND (a.expires_at > now()) IS TRUE AND a.id <> ALL (%(exclude)s::text[])
     ORDER BY a.run_at, a.created_at, a.id LIMIT %(limit)s::int)
    UNION ALL
    (SELECT 'lapsed', a.id, a.run_at, a.created_at FROM async_jobs a
     WHERE a.status = 'in-progress' AND a.kind = k.kind AND a.lease_expires_at < now()
       AND least(a.max_attempts::bigint - a.attempts, 2) = 2 AND a.attempts >= 0
       AND (a.expires_at > now()) IS TRUE AND a.id <> ALL (%(exclude)s::text[])
     ORDER BY a.lease_expires_at LIMIT %(limit)s::int)
  ) x
  WHERE NOT (SELECT yes FROM alone)
  UNION ALL
  SELECT kind, how, id, run_at, created_at FROM last
  ORDER BY run_at, created_at, id LIMIT %(limit)s::int
),
quota AS MATERIALIZED (
  SELECT (%(kinds)s::text[])[1] AS kind, %(limit)s::bigint AS queued, 0::bigint AS lapsed,
         0::bigint AS last
  FROM alone WHERE yes
  UNION ALL
  SELECT kind, count(*) FILTER (WHERE how = 'queued'), count(*) FILTER (WHERE how = 'lapsed'),
         count(*) FILTER (WHERE how = 'last')
  FROM pick GROUP BY kind
),
got AS MATERIALIZED (
  SELECT x.id
  FROM quota
  CROSS JOIN LATERAL (
    (SELECT * FROM (
      SELECT a.id, a.run_at, a.created_at FROM async_jobs a
      WHERE a.status = 'accepted' AND a.kind = quota.kind AND a.run_at <= now()
        AND a.attempts >= 0 AND a.attempts < a.max_attempts
        AND (a.expires_at > now()) IS TRUE AND a.id <> ALL (%(exclude)s::text[])
      ORDER BY a.run_at, a.created_at, a.id LIMIT quota.queued FOR NO KEY UPDATE SKIP LOCKED) q)
    UNION ALL
    (SELECT * FROM (
      SELECT a.id, a.run_at, a.created_at FROM async_jobs a
      WHERE a.status = 'in-progress' AND a.kind = quota.kind AND a.lease_expires_at < now()
        AND least(a.max_attempts::bigint - a.attempts, 2) = 2 AND a.attempts >= 0
        AND (a.expires_at > now()) IS TRUE AND a.id <> ALL (%(exclude)s::text[])
      ORDER BY a.lease_expires_at LIMIT quota.lapsed FOR NO KEY UPDATE SKIP LOCKED) l)
    UNION ALL
    (SELECT * FROM (
      SELECT a.id, a.run_at, a.created_at FROM async_jobs a
      WHERE a.status = 'in-progress' AND a.kind = quota.kind AND a.lease_expires_at < now()
        AND least(a.max_attempts::bigint - a.attempts, 2) = 1 AND a.attempts >= 0
        AND (a.expires_at > now()) IS TRUE AND a.id <> ALL (%(exclude)s::text[])
      ORDER BY a.lease_expires_at LIMIT quota.last FOR NO KEY UPDATE SKIP LOCKED) c)
  ) x
  ORDER BY x.run_at, x.created_at, x.id LIMIT %(limit)s::int
)
UPDATE async_jobs j
SET status = 'in-progress',
    attempts = j.attempts + 1,
    locked_by = %(token)s,
    lease_expires_at = clock_timestamp() + make_interval(secs => %(lease)s),
    progress = NULL,
    -- Only an adopted row has one; it would break a check, and with it everybody's claim.
    output = NULL,
    started_at = coalesce(j.started_at, now()),
    updated_at = now()
-- An array, not a join: the planner cannot estimate the LIMIT and would scan the table (0.6 s at 1M rows).
WHERE j.id = ANY (ARRAY(SELECT id FROM got))
RETURNING {job}
