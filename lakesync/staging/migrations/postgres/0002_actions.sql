-- Actions, the log of attempts at them, connectors, and the settings that admins change at run time.

-- outcome: NULL until the action has ended. lease_ms: until when the process with the claim may execute it.
CREATE TABLE lakesync.action (
    gateway text COLLATE "C" NOT NULL,
    client_id text COLLATE "C" NOT NULL,
    action_id text COLLATE "C" NOT NULL,
    idempotency_key text COLLATE "C",
    attempts integer NOT NULL,
    claim text COLLATE "C" NOT NULL,
    lease_ms bigint NOT NULL,
    touched_ms bigint NOT NULL,
    outcome bytea,
    PRIMARY KEY (gateway, client_id, action_id)
);
CREATE UNIQUE INDEX action_by_key ON lakesync.action (gateway, client_id, idempotency_key)
    WHERE idempotency_key IS NOT NULL;
CREATE INDEX action_by_age ON lakesync.action (gateway, touched_ms);

CREATE TABLE lakesync.action_log (
    gateway text COLLATE "C" NOT NULL,
    seq bigint NOT NULL,
    at_ms bigint NOT NULL,
    client_id text COLLATE "C" NOT NULL,
    action_id text COLLATE "C" NOT NULL,
    connector text COLLATE "C" NOT NULL,
    action_type text COLLATE "C" NOT NULL,
    attempt integer NOT NULL,
    code text COLLATE "C" NOT NULL,
    ms bigint NOT NULL,
    PRIMARY KEY (gateway, seq)
);

CREATE TABLE lakesync.connector (
    gateway text COLLATE "C" NOT NULL,
    name text COLLATE "C" NOT NULL,
    body bytea NOT NULL,
    PRIMARY KEY (gateway, name)
);

ALTER TABLE lakesync.gateway ADD COLUMN write_scope text COLLATE "C";
