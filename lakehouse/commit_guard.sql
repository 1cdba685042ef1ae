-- Run this on a Postgres with Iceberg's JDBC catalogue, before the first commit.
--
-- A commit is "UPDATE iceberg_tables SET metadata_location = NEW WHERE … AND metadata_location = OLD". If the connection
-- is lost before the response, Iceberg sends the statement again, which finds no row. Iceberg then believes that another
-- writer has committed, and deletes the files of its own snapshot, although that is the table's newest now. With this
-- trigger the repeated statement fails with an error, after which Iceberg deletes nothing. The caller reads the table,
-- and repeats the commit if the change is missing.
CREATE TABLE IF NOT EXISTS iceberg_tables (
    catalog_name VARCHAR(255) NOT NULL,
    table_namespace VARCHAR(255) NOT NULL,
    table_name VARCHAR(255) NOT NULL,
    metadata_location VARCHAR(1000),
    previous_metadata_location VARCHAR(1000),
    iceberg_type VARCHAR(5),
    PRIMARY KEY (catalog_name, table_namespace, table_name)
);

CREATE OR REPLACE FUNCTION lakesync_commit_guard() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NOT EXISTS (SELECT FROM moved) THEN
        RAISE EXCEPTION 'LakeSync: the table has moved since this commit began; it may be this commit that moved it'
            USING ERRCODE = 'LS001', HINT = 'Read the table, and commit again where the change is not there.';
    END IF;
    RETURN NULL;
END
$$;

CREATE TRIGGER lakesync_commit_guard AFTER UPDATE ON iceberg_tables
    REFERENCING NEW TABLE AS moved FOR EACH STATEMENT EXECUTE FUNCTION lakesync_commit_guard();
