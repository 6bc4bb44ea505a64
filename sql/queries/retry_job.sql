-- Queues a failed job anew, as a job of its own with all its attempts; the failed one stays as it is.
-- Index: the primary key.
INSERT INTO async_jobs AS j (id, tenant, project, kind, request, parameters, claims, submitted_by,
                             retention, max_attempts, expires_at)
SELECT %(new_id)s, f.tenant, f.project, f.kind, f.request, f.parameters, f.claims, f.submitted_by,
       f.retention, greatest(f.max_attempts, 1), now() + coalesce(f.retention, interval '1 day')
FROM async_jobs f
WHERE f.id = %(id)s AND f.tenant = %(tenant)s AND f.project = %(project)s
  AND (%(submitted_by)s::text IS NULL OR f.submitted_by = %(submitted_by)s)
  AND f.status = 'failed' AND f.expires_at > now()
RETURNING {job}
