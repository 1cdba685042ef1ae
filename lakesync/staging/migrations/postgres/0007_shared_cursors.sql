-- What cursors of a sharded gateway stand for that many followers were told at once: shard and cursor there, as JSON.

CREATE TABLE lakesync.shared_cursor (
    gateway text COLLATE "C" NOT NULL,
    cursor bigint NOT NULL,
    parts text NOT NULL,
    PRIMARY KEY (gateway, cursor)
);
