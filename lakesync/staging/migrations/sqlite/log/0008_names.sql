-- The spelling of table and column names in each namespace of the lake. gateway: the one that used the name first.

CREATE TABLE spelled_name (
    gateway TEXT NOT NULL,
    namespace TEXT NOT NULL,
    folded TEXT NOT NULL,
    spelled TEXT NOT NULL,
    PRIMARY KEY (namespace, folded)
) STRICT, WITHOUT ROWID;
