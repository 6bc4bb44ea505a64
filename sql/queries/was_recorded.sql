-- Whether the end of a claim is recorded; waits for whoever has the row locked, such as a transaction whose commit was not answered.
-- Index: the primary key.
SELECT finished_by IS NOT DISTINCT FROM %(token)s FROM async_jobs WHERE id = %(id)s FOR SHARE
