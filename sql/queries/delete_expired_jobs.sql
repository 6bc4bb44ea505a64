-- Deletes expired rows held under these tokens, after their clean-up returned; answers id and token of what it deleted.
-- Index: the primary key, once a row.
WITH mine AS MATERIALIZED (
  SELECT j.id
  FROM unnest(%(ids)s::text[], %(tokens)s::text[]) AS a (id, token)
  JOIN async_jobs j ON j.id = a.id AND j.locked_by = a.token
  -- IS TRUE leaves the planner no index but the key's: it might read all that has expired.
  WHERE (j.expires_at <= now()) IS TRUE
  ORDER BY j.id FOR UPDATE OF j SKIP LOCKED
)
DELETE FROM async_jobs j USING mine m WHERE j.id = m.id RETURNING j.id, j.locked_by
