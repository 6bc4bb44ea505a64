-- Records one migration, in the transaction that applied it.
-- Index: the primary key.
INSERT INTO hastetrio_migrations (version, name, breaking)
VALUES (%(version)s, %(name)s, %(breaking)s)
