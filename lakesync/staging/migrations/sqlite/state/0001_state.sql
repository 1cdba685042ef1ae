-- state.db: rows and feed entries, which can be rebuilt from the journal. They are written after its commit.

CREATE TABLE store (
    only INTEGER PRIMARY KEY CHECK (only = 1),
    store_id TEXT NOT NULL
) STRICT;

CREATE TABLE applied (
    gateway TEXT NOT NULL,
    shard TEXT NOT NULL,
    epoch INTEGER NOT NULL,
    applied_seq INTEGER NOT NULL,
    rules_version INTEGER NOT NULL,
    PRIMARY KEY (gateway, shard)
) STRICT, WITHOUT ROWID;

CREATE TABLE row_state (
    gateway TEXT NOT NULL,
    table_name TEXT NOT NULL,
    row_id TEXT NOT NULL,
    body BLOB NOT NULL,
    UNIQUE (gateway, table_name, row_id)
) STRICT;

CREATE TABLE bucket (
    id INTEGER PRIMARY KEY,
    gateway TEXT NOT NULL,
    name TEXT NOT NULL,
    UNIQUE (gateway, name)
) STRICT;

CREATE TABLE entry (
    bucket INTEGER NOT NULL,
    table_name TEXT NOT NULL,
    row_id TEXT NOT NULL,
    first INTEGER NOT NULL,
    since INTEGER NOT NULL,
    left_at INTEGER NOT NULL,
    changed INTEGER NOT NULL,
    inside INTEGER NOT NULL,
    PRIMARY KEY (bucket, table_name, row_id)
) STRICT, WITHOUT ROWID;
CREATE INDEX entry_by_change ON entry (bucket, changed);
