-- Re-indexes: rows up to (table_name, row_id) have the bucket keys of the rules with this version, and all if done.

CREATE TABLE lakesync.reindex (
    gateway text COLLATE "C" PRIMARY KEY,
    rules_version bigint NOT NULL,
    table_name text COLLATE "C",
    row_id text COLLATE "C",
    done bigint NOT NULL
);
