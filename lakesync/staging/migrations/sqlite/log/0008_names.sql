-- How tables and columns are spelled, once a namespace of the lake; gateway: which one used the name first.

CREATE TABLE spelled_name (
    gateway TEXT NOT NULL,
    namespace TEXT NOT NULL,
    folded TEXT NOT NULL,
    spelled TEXT NOT NULL,
    PRIMARY KEY (namespace, folded)
) STRICT, WITHOUT ROWID;
