-- Rows as they are sent whole, and an index that answers the feed of a bucket by itself.

-- spelled: NULL where it has to be made of the body
ALTER TABLE row_state ADD COLUMN spelled BLOB;
ALTER TABLE row_state ADD COLUMN deltas INTEGER NOT NULL DEFAULT 0;
ALTER TABLE row_state ADD COLUMN writers BLOB NOT NULL DEFAULT x'5b5d';
ALTER TABLE row_state ADD COLUMN writers_floor INTEGER NOT NULL DEFAULT 0;

DROP INDEX entry_by_change;
CREATE INDEX entry_feed ON entry (bucket, changed, table_name, row_id, first, since, left_at, inside);
