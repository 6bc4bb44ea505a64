-- What became of rows a batch did not answer: recorded by this claim, cancelled, expired, lost, or "again" (still ours, but locked by somebody).
-- Index: the primary key, once a row. A plain read; nothing is locked.
SELECT a.id, a.token,
       CASE WHEN j.finished_by = a.token THEN 'recorded'
            WHEN j.locked_by IS DISTINCT FROM a.token THEN 'lost'
            WHEN j.status = 'cancelled' THEN 'cancelled'
            WHEN j.expires_at <= now() THEN 'expired'
            ELSE 'again' END
FROM unnest(%(ids)s::text[], %(tokens)s::text[]) AS a (id, token)
LEFT JOIN async_jobs j ON j.id = a.id
