-- What can be shown of rows that cannot be loaded whole: all but their JSON, with times inside the years 1 to 9999.
-- Index: the primary key, once a row. Rare; a plain read.
WITH bounds AS (
  SELECT timestamptz '0001-01-02 00:00+00' AS first, timestamptz '9999-12-30 00:00+00' AS last
)
SELECT j.id, j.tenant, j.project, j.kind, j.status, j.request,
       'null'::jsonb, 'null'::jsonb, j.submitted_by, j.progress, 'null'::jsonb,
       j.output_content_type,
       -- This program's own outcomes are far shorter; a longer one may be what cannot be loaded.
       CASE WHEN octet_length(j.error::text) < 1000 THEN j.error END,
       j.attempts, j.max_attempts, j.locked_by,
       least(greatest(j.lease_expires_at, first), last),
       least(greatest(j.created_at, first), last), least(greatest(j.updated_at, first), last),
       least(greatest(j.started_at, first), last), least(greatest(j.finished_at, first), last),
       least(greatest(j.expires_at, first), last),
       j.finished_by, j.hand_backs, least(greatest(j.run_at, first), last), j.unique_key,
       'null'::jsonb, 'null'::jsonb
FROM async_jobs j CROSS JOIN bounds
WHERE j.id = ANY (%(ids)s::text[])
