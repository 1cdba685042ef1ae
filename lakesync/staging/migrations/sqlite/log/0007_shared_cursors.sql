-- What cursors of a sharded gateway stand for that many followers were told at once: shard and cursor there, as JSON.

CREATE TABLE shared_cursor (
    gateway TEXT NOT NULL,
    cursor INTEGER NOT NULL,
    parts TEXT NOT NULL,
    PRIMARY KEY (gateway, cursor)
) STRICT, WITHOUT ROWID;
