-- The record of the migrations applied, and whether a program that does not know one can go on working.
-- Index: the primary key.
CREATE TABLE IF NOT EXISTS hastetrio_migrations (
  version integer PRIMARY KEY,
  name text NOT NULL,
  breaking boolean NOT NULL,
  applied_at timestamptz NOT NULL DEFAULT now()
)
