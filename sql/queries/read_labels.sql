-- The labels of the enum async_job_status, in their order.
-- Index: the catalogue's own.
SELECT enumlabel FROM pg_enum WHERE enumtypid = to_regtype('async_job_status') ORDER BY enumsortorder
