-- Whether a running job is still held under this token; nobody else can take it until the transaction ends.
-- Index: the primary key. Waits for whoever has the row locked, such as a renewal.
SELECT 1 FROM async_jobs
-- IS TRUE leaves the planner no index but the key's, in a session of its own settings.
WHERE id = %(id)s AND locked_by = %(token)s AND (status = 'in-progress' AND expires_at > now()) IS TRUE
FOR SHARE
