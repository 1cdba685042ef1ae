-- Rows encoded as they are sent to clients, and an index that covers reads of a bucket's feed.

-- spelled: the encoded row. NULL if it must be encoded from the body.
ALTER TABLE row_state ADD COLUMN spelled BLOB;
ALTER TABLE row_state ADD COLUMN deltas INTEGER NOT NULL DEFAULT 0;
ALTER TABLE row_state ADD COLUMN writers BLOB NOT NULL DEFAULT x'5b5d';
ALTER TABLE row_state ADD COLUMN writers_floor INTEGER NOT NULL DEFAULT 0;

DROP INDEX entry_by_change;
CREATE INDEX entry_feed ON entry (bucket, changed, table_name, row_id, first, since, left_at, inside);
