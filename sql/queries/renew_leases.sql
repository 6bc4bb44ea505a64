-- Extends the leases held under these tokens, whatever the status, which is part of the answer; a lease only grows.
-- Index: the primary key, once a row. Rows somebody else has locked are stepped over; state_of_jobs tells what became of them.
WITH mine AS MATERIALIZED (
  SELECT j.id, a.duration, a.progress
  FROM unnest(%(ids)s::text[], %(tokens)s::text[], %(durations)s::float8[], %(progress)s::text[])
    AS a (id, token, duration, progress)
  JOIN async_jobs j ON j.id = a.id AND j.locked_by = a.token
  ORDER BY j.id FOR NO KEY UPDATE OF j SKIP LOCKED
)
UPDATE async_jobs j
SET lease_expires_at =
      greatest(j.lease_expires_at, clock_timestamp() + make_interval(secs => m.duration)),
    -- An older renewal that arrives late must not put an older progress back.
    progress = CASE WHEN j.status = 'in-progress' AND statement_timestamp() >= j.updated_at
                    THEN coalesce(m.progress, j.progress) ELSE j.progress END,
    updated_at = greatest(j.updated_at, statement_timestamp())
FROM mine m
WHERE j.id = m.id
RETURNING j.id, j.locked_by,
          CASE WHEN j.status = 'cancelled' THEN 'cancelled'
               WHEN j.expires_at <= now() THEN 'expired' ELSE 'renewed' END
