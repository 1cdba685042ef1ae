-- How far rows are brought in line with the rules of a version: those up to (table_name, row_id) are, or all of them.

CREATE TABLE lakesync.reindex (
    gateway text COLLATE "C" PRIMARY KEY,
    rules_version bigint NOT NULL,
    table_name text COLLATE "C",
    row_id text COLLATE "C",
    done bigint NOT NULL
);
