-- Keeps what handlers saved for their next attempts, fenced: only of rows in progress, not expired, and held under these tokens. Answers id and token of what it recorded.
-- Index: the primary key, once a row. Rows somebody else has locked are stepped over; state_of_jobs tells what became of them.
WITH mine AS MATERIALIZED (
  SELECT j.id, a.state
  FROM unnest(%(ids)s::text[], %(tokens)s::text[], %(states)s::text[]) AS a (id, token, state)
  JOIN async_jobs j ON j.id = a.id AND j.locked_by = a.token
  WHERE (j.status = 'in-progress' AND j.expires_at > now()) IS TRUE
  ORDER BY j.id FOR NO KEY UPDATE OF j SKIP LOCKED
)
UPDATE async_jobs j
SET state = m.state::jsonb
FROM mine m
WHERE j.id = m.id
RETURNING j.id, j.locked_by
