-- Broadcast cursors of sharded gateways. parts: the cursor in each shard, as JSON.

CREATE TABLE lakesync.shared_cursor (
    gateway text COLLATE "C" NOT NULL,
    cursor bigint NOT NULL,
    parts text NOT NULL,
    PRIMARY KEY (gateway, cursor)
);
