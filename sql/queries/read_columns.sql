-- The columns and types of the table async_jobs in the schema where migrations create theirs; none, if there is none.
-- Index: the catalogue's own.
SELECT a.attname, t.typname
FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid
WHERE a.attrelid = to_regclass(quote_ident(current_schema()) || '.async_jobs')
  AND a.attnum > 0 AND NOT a.attisdropped
