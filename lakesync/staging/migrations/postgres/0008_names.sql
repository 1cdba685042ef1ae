-- The spelling of table and column names in each namespace of the lake. gateway: the one that used the name first.

CREATE TABLE lakesync.spelled_name (
    gateway text COLLATE "C" NOT NULL,
    namespace text COLLATE "C" NOT NULL,
    folded text COLLATE "C" NOT NULL,
    spelled text COLLATE "C" NOT NULL,
    PRIMARY KEY (namespace, folded)
);
