-- Broadcast cursors of sharded gateways. parts: the cursor in each shard, as JSON.

CREATE TABLE shared_cursor (
    gateway TEXT NOT NULL,
    cursor INTEGER NOT NULL,
    parts TEXT NOT NULL,
    PRIMARY KEY (gateway, cursor)
) STRICT, WITHOUT ROWID;
