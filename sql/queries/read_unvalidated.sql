-- The checks of async_jobs that older rows have not been checked for.
-- Index: the catalogue's own.
SELECT conname FROM pg_constraint
WHERE conrelid = to_regclass('async_jobs') AND contype = 'c' AND NOT convalidated
ORDER BY conname
