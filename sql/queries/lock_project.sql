-- Lets one kick-off of a project at a time count its live jobs; released when the transaction ends.
-- Index: none; an advisory lock, keyed by the project.
SELECT pg_advisory_xact_lock(hashtextextended('async_jobs ' || %(tenant)s || ' ' || %(project)s, 0))
