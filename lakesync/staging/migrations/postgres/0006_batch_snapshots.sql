-- The Iceberg snapshot in which a batch was read back.
ALTER TABLE lakesync.batch ADD COLUMN snapshot_id bigint;
