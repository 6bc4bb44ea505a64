-- Lets one migration of this database run at a time; released when the transaction ends.
-- Index: none; an advisory lock.
SELECT pg_advisory_xact_lock(hashtextextended('hastetrio migrations', 0))
