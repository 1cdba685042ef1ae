-- Actions, the log of attempts at them, connectors, and the settings that admins change at run time.

-- outcome: NULL until the action has ended. lease_ms: until when the process with the claim may execute it.
CREATE TABLE action (
    gateway TEXT NOT NULL,
    client_id TEXT NOT NULL,
    action_id TEXT NOT NULL,
    idempotency_key TEXT,
    attempts INTEGER NOT NULL,
    claim TEXT NOT NULL,
    lease_ms INTEGER NOT NULL,
    touched_ms INTEGER NOT NULL,
    outcome BLOB,
    PRIMARY KEY (gateway, client_id, action_id)
) STRICT, WITHOUT ROWID;
CREATE UNIQUE INDEX action_by_key ON action (gateway, client_id, idempotency_key) WHERE idempotency_key IS NOT NULL;
CREATE INDEX action_by_age ON action (gateway, touched_ms);

CREATE TABLE action_log (
    gateway TEXT NOT NULL,
    seq INTEGER NOT NULL,
    at_ms INTEGER NOT NULL,
    client_id TEXT NOT NULL,
    action_id TEXT NOT NULL,
    connector TEXT NOT NULL,
    action_type TEXT NOT NULL,
    attempt INTEGER NOT NULL,
    code TEXT NOT NULL,
    ms INTEGER NOT NULL,
    PRIMARY KEY (gateway, seq)
) STRICT, WITHOUT ROWID;

CREATE TABLE connector (
    gateway TEXT NOT NULL,
    name TEXT NOT NULL,
    body BLOB NOT NULL,
    PRIMARY KEY (gateway, name)
) STRICT, WITHOUT ROWID;

ALTER TABLE gateway ADD COLUMN write_scope TEXT;
