-- The transaction that keeps vacuum from removing the most: a session's, a prepared one, or what a replication slot holds. None, or one.
-- Index: none; reads the server's own state, as far as the role may see it.
SELECT source, pid, name, owner, database, state, seconds, transactions
FROM (
  SELECT 'session' AS source, a.pid,
         coalesce(nullif(a.application_name, ''), nullif(a.backend_type, 'client backend')) AS name,
         a.usename::text AS owner, a.datname::text AS database, a.state,
         -- Null in rows of other roles, without pg_read_all_stats; as the state is.
         extract(epoch FROM clock_timestamp() - a.xact_start)::float8 AS seconds,
         greatest(age(a.backend_xid), age(a.backend_xmin)) AS transactions,
         a.backend_xid IS NOT NULL AS writes
  FROM pg_stat_activity a
  WHERE a.pid <> pg_backend_pid() AND a.leader_pid IS NULL
    -- What only reads in another database stops no vacuum here; what writes there does.
    AND (a.backend_xid IS NOT NULL
         OR a.backend_xmin IS NOT NULL AND (a.datid IS NULL OR a.datname = current_database()))
    -- A vacuum does not keep others from removing rows.
    AND NOT EXISTS (SELECT 1 FROM pg_stat_progress_vacuum v WHERE v.pid = a.pid)
  UNION ALL
  SELECT 'prepared', NULL, p.gid, p.owner::text, p.database::text, NULL,
         extract(epoch FROM clock_timestamp() - p.prepared)::float8, age(p.transaction), true
  FROM pg_prepared_xacts p
  UNION ALL
  SELECT 'slot', s.active_pid, s.slot_name::text, NULL, s.database::text,
         CASE WHEN s.active THEN 'active' ELSE 'inactive' END, NULL, age(s.xmin), false
  FROM pg_replication_slots s
  WHERE s.xmin IS NOT NULL
) held
-- Every snapshot goes back to the oldest transaction that writes: among equals, that one is the cause.
ORDER BY transactions DESC, writes DESC, seconds DESC NULLS LAST LIMIT 1
