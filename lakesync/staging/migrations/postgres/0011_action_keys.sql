-- A B-tree rejects entries of more than 2,704 bytes; a client id and a key of 512 characters each have up to 4,096.
-- `put_action` keeps a client's keys unique: the gateway's row is locked for each commit.

DROP INDEX lakesync.action_by_key;
CREATE INDEX action_by_key ON lakesync.action USING hash (idempotency_key) WHERE idempotency_key IS NOT NULL;
