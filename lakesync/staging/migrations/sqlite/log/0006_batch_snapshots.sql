-- The Iceberg snapshot in which a batch was read back.
ALTER TABLE batch ADD COLUMN snapshot_id INTEGER;
