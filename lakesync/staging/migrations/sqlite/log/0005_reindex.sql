-- How far rows are brought in line with the rules of a version: those up to (table_name, row_id) are, or all of them.

CREATE TABLE reindex (
    gateway TEXT PRIMARY KEY,
    rules_version INTEGER NOT NULL,
    table_name TEXT,
    row_id TEXT,
    done INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
