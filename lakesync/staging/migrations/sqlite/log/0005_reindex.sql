-- Re-indexes: rows up to (table_name, row_id) have the bucket keys of the rules with this version, and all if done.

CREATE TABLE reindex (
    gateway TEXT PRIMARY KEY,
    rules_version INTEGER NOT NULL,
    table_name TEXT,
    row_id TEXT,
    done INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
