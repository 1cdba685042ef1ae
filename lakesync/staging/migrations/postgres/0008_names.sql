-- How tables and columns are spelled, once a namespace of the lake; gateway: which one used the name first.

CREATE TABLE lakesync.spelled_name (
    gateway text COLLATE "C" NOT NULL,
    namespace text COLLATE "C" NOT NULL,
    folded text COLLATE "C" NOT NULL,
    spelled text COLLATE "C" NOT NULL,
    PRIMARY KEY (namespace, folded)
);
