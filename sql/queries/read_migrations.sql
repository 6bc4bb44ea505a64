-- The migrations applied, oldest first.
-- Index: the primary key.
SELECT version, name, breaking FROM hastetrio_migrations ORDER BY version
