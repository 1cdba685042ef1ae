-- Erasures: permanent deletions, which the lake must execute too.

-- An erasure has table_name and row_id, or client_id. It covers deltas up to hlc. Checkpoints from before arrival may
-- contain erased values. done_ms, lake_ms: when staging and when the lake had executed it.
CREATE TABLE lakesync.erasure (
    gateway text COLLATE "C" NOT NULL,
    seq bigint NOT NULL,
    table_name text COLLATE "C",
    row_id text COLLATE "C",
    client_id text COLLATE "C",
    hlc bigint NOT NULL,
    arrival bigint NOT NULL,
    requested_ms bigint NOT NULL,
    deltas bigint NOT NULL,
    row_count bigint NOT NULL,
    done_ms bigint,
    lake_ms bigint,
    PRIMARY KEY (gateway, seq)
);
CREATE INDEX erasure_by_row ON lakesync.erasure (gateway, row_id, table_name);
CREATE INDEX erasure_by_client ON lakesync.erasure (gateway, client_id);
CREATE INDEX erasure_by_hlc ON lakesync.erasure (gateway, hlc);
