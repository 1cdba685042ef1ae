-- A commit is one transaction, which locks the row of its gateway.
-- Text compares by code point (COLLATE "C"), as it does in Python and in SQLite.

CREATE TABLE lakesync.gateway (
    id text COLLATE "C" PRIMARY KEY,
    epoch bigint NOT NULL,
    arrival bigint NOT NULL,
    config_version bigint NOT NULL,
    rules bytea,
    rules_version bigint NOT NULL
);

CREATE TABLE lakesync.shard (
    gateway text COLLATE "C" NOT NULL,
    shard text COLLATE "C" NOT NULL,
    last_seq bigint NOT NULL,
    last_arrival bigint NOT NULL,
    flushed_seq bigint NOT NULL,
    trimmed_seq bigint NOT NULL,
    deltas bigint NOT NULL,
    bytes bigint NOT NULL,
    flush_requested_ms bigint,
    flush_requested_seq bigint NOT NULL,
    PRIMARY KEY (gateway, shard)
);

CREATE TABLE lakesync.log (
    gateway text COLLATE "C" NOT NULL,
    shard text COLLATE "C" NOT NULL,
    epoch bigint NOT NULL,
    seq bigint NOT NULL,
    arrival bigint NOT NULL,
    client_id text COLLATE "C" NOT NULL,
    hlc_low bigint NOT NULL,
    hlc_high bigint NOT NULL,
    count integer NOT NULL,
    id_sum bigint NOT NULL,
    bytes bigint NOT NULL,
    committed_ms bigint NOT NULL,
    claims bytea NOT NULL,
    ids bytea NOT NULL,
    body bytea,
    PRIMARY KEY (gateway, shard, epoch, seq)
);
-- the body is compressed already
ALTER TABLE lakesync.log ALTER COLUMN body SET STORAGE EXTERNAL;
CREATE INDEX log_by_client ON lakesync.log (gateway, client_id, hlc_high, hlc_low);

CREATE TABLE lakesync.writer (
    gateway text COLLATE "C" NOT NULL,
    client_id text COLLATE "C" NOT NULL,
    hlc_high bigint NOT NULL,
    widest bigint NOT NULL,
    PRIMARY KEY (gateway, client_id)
);

CREATE TABLE lakesync.client (
    gateway text COLLATE "C" NOT NULL,
    client_id text COLLATE "C" NOT NULL,
    record bytea NOT NULL,
    PRIMARY KEY (gateway, client_id)
);

CREATE TABLE lakesync.table_schema (
    gateway text COLLATE "C" NOT NULL,
    table_name text COLLATE "C" NOT NULL,
    version bigint NOT NULL,
    body bytea NOT NULL,
    PRIMARY KEY (gateway, table_name)
);

CREATE TABLE lakesync.ledger (
    gateway text COLLATE "C" NOT NULL,
    day text COLLATE "C" NOT NULL,
    count bigint NOT NULL,
    id_sum bigint NOT NULL,
    flushed_count bigint NOT NULL,
    flushed_id_sum bigint NOT NULL,
    PRIMARY KEY (gateway, day)
);

CREATE TABLE lakesync.batch (
    batch_id text COLLATE "C" PRIMARY KEY,
    gateway text COLLATE "C" NOT NULL,
    shard text COLLATE "C" NOT NULL,
    epoch bigint NOT NULL,
    from_seq bigint NOT NULL,
    to_seq bigint NOT NULL,
    deltas bigint NOT NULL,
    bytes bigint NOT NULL,
    arrival_low bigint NOT NULL,
    arrival_high bigint NOT NULL,
    confirmed_ms bigint
);
CREATE UNIQUE INDEX batch_open ON lakesync.batch (gateway, shard) WHERE confirmed_ms IS NULL;

CREATE TABLE lakesync.cut (
    gateway text COLLATE "C" NOT NULL,
    epoch bigint NOT NULL,
    arrival bigint NOT NULL,
    body bytea NOT NULL,
    PRIMARY KEY (gateway, epoch, arrival)
);

CREATE TABLE lakesync.row_state (
    gateway text COLLATE "C" NOT NULL,
    table_name text COLLATE "C" NOT NULL,
    row_id text COLLATE "C" NOT NULL,
    body bytea NOT NULL,
    PRIMARY KEY (gateway, table_name, row_id)
) WITH (fillfactor = 80);

CREATE TABLE lakesync.bucket (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    gateway text COLLATE "C" NOT NULL,
    name text COLLATE "C" NOT NULL,
    UNIQUE (gateway, name)
);

CREATE TABLE lakesync.entry (
    bucket bigint NOT NULL,
    table_name text COLLATE "C" NOT NULL,
    row_id text COLLATE "C" NOT NULL,
    first bigint NOT NULL,
    since bigint NOT NULL,
    left_at bigint NOT NULL,
    changed bigint NOT NULL,
    inside boolean NOT NULL,
    PRIMARY KEY (bucket, table_name, row_id)
);
CREATE INDEX entry_by_change ON lakesync.entry (bucket, changed);
