-- log.db: the journal. A push is acknowledged when it is committed here.

CREATE TABLE store (
    only INTEGER PRIMARY KEY CHECK (only = 1),
    store_id TEXT NOT NULL
) STRICT;

CREATE TABLE gateway (
    id TEXT PRIMARY KEY,
    epoch INTEGER NOT NULL,
    arrival INTEGER NOT NULL,
    config_version INTEGER NOT NULL,
    rules BLOB,
    rules_version INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE shard (
    gateway TEXT NOT NULL,
    shard TEXT NOT NULL,
    last_seq INTEGER NOT NULL,
    last_arrival INTEGER NOT NULL,
    flushed_seq INTEGER NOT NULL,
    trimmed_seq INTEGER NOT NULL,
    deltas INTEGER NOT NULL,
    bytes INTEGER NOT NULL,
    flush_requested_ms INTEGER,
    flush_requested_seq INTEGER NOT NULL,
    PRIMARY KEY (gateway, shard)
) STRICT, WITHOUT ROWID;

-- ids and body are last, so that reading the other columns touches no overflow page.
CREATE TABLE log (
    gateway TEXT NOT NULL,
    shard TEXT NOT NULL,
    epoch INTEGER NOT NULL,
    seq INTEGER NOT NULL,
    arrival INTEGER NOT NULL,
    client_id TEXT NOT NULL,
    hlc_low INTEGER NOT NULL,
    hlc_high INTEGER NOT NULL,
    count INTEGER NOT NULL,
    id_sum INTEGER NOT NULL,
    bytes INTEGER NOT NULL,
    committed_ms INTEGER NOT NULL,
    claims BLOB NOT NULL,
    ids BLOB NOT NULL,
    body BLOB,
    UNIQUE (gateway, shard, epoch, seq)
) STRICT;
CREATE INDEX log_by_client ON log (gateway, client_id, hlc_high, hlc_low);

-- widest: the greatest hlc_high - hlc_low of the client's log rows, which bounds the search for known ids.
CREATE TABLE writer (
    gateway TEXT NOT NULL,
    client_id TEXT NOT NULL,
    hlc_high INTEGER NOT NULL,
    widest INTEGER NOT NULL,
    PRIMARY KEY (gateway, client_id)
) STRICT, WITHOUT ROWID;

CREATE TABLE client (
    gateway TEXT NOT NULL,
    client_id TEXT NOT NULL,
    record BLOB NOT NULL,
    PRIMARY KEY (gateway, client_id)
) STRICT, WITHOUT ROWID;

CREATE TABLE table_schema (
    gateway TEXT NOT NULL,
    table_name TEXT NOT NULL,
    version INTEGER NOT NULL,
    body BLOB NOT NULL,
    PRIMARY KEY (gateway, table_name)
) STRICT, WITHOUT ROWID;

CREATE TABLE ledger (
    gateway TEXT NOT NULL,
    day TEXT NOT NULL,
    count INTEGER NOT NULL,
    id_sum INTEGER NOT NULL,
    flushed_count INTEGER NOT NULL,
    flushed_id_sum INTEGER NOT NULL,
    PRIMARY KEY (gateway, day)
) STRICT, WITHOUT ROWID;

CREATE TABLE batch (
    batch_id TEXT PRIMARY KEY,
    gateway TEXT NOT NULL,
    shard TEXT NOT NULL,
    epoch INTEGER NOT NULL,
    from_seq INTEGER NOT NULL,
    to_seq INTEGER NOT NULL,
    deltas INTEGER NOT NULL,
    bytes INTEGER NOT NULL,
    arrival_low INTEGER NOT NULL,
    arrival_high INTEGER NOT NULL,
    confirmed_ms INTEGER
) STRICT, WITHOUT ROWID;
CREATE UNIQUE INDEX batch_open ON batch (gateway, shard) WHERE confirmed_ms IS NULL;

CREATE TABLE cut (
    gateway TEXT NOT NULL,
    epoch INTEGER NOT NULL,
    arrival INTEGER NOT NULL,
    body BLOB NOT NULL,
    PRIMARY KEY (gateway, epoch, arrival)
) STRICT, WITHOUT ROWID;
