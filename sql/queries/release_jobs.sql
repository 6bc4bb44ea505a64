-- Lets go of rows held under these tokens: a running one is queued again (failed, if no attempt is left), a cancelled one stays cancelled.
-- Index: the primary key, once a row. Rows somebody else has locked are stepped over; state_of_jobs tells what became of them.
WITH mine AS MATERIALIZED (
  SELECT j.id, a.token, g.back, greatest(j.attempts - g.back, 0) AS attempts,
         j.status = 'in-progress' AND greatest(j.attempts - g.back, 0) >= j.max_attempts
           AND j.expires_at > now() AS spent,
         j.status = 'in-progress' AND j.expires_at <= now() AS over
  FROM unnest(%(ids)s::text[], %(tokens)s::text[], %(give_back)s::bool[]) AS a (id, token, back)
  JOIN async_jobs j ON j.id = a.id AND j.locked_by = a.token
  CROSS JOIN LATERAL (
    SELECT (a.back AND j.status = 'in-progress' AND j.hand_backs < %(cap)s)::int AS back) g
  ORDER BY j.id FOR NO KEY UPDATE OF j SKIP LOCKED
)
UPDATE async_jobs j
SET locked_by = NULL,
    lease_expires_at = NULL,
    updated_at = now(),
    hand_backs = j.hand_backs + m.back,
    attempts = CASE WHEN j.status = 'in-progress' THEN m.attempts ELSE j.attempts END,
    -- An expired row must not be queued again: with its attempts spent it could not be, and it is over.
    status = CASE WHEN j.status <> 'in-progress' THEN j.status
                  WHEN m.over THEN 'cancelled'
                  WHEN m.spent THEN 'failed' ELSE 'accepted' END,
    error = CASE WHEN m.spent THEN %(outcome)s::jsonb ELSE j.error END,
    finished_at = CASE WHEN m.spent OR m.over THEN now() ELSE j.finished_at END,
    expires_at = CASE WHEN m.spent
      THEN now() + coalesce(j.retention, make_interval(secs => %(retention)s))
      ELSE j.expires_at END
FROM mine m
WHERE j.id = m.id
RETURNING j.id, m.token
