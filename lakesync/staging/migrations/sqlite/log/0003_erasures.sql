-- Erasures: permanent deletions, which the lake must execute too.

-- An erasure has table_name and row_id, or client_id. It covers deltas up to hlc. Checkpoints from before arrival may
-- contain erased values. done_ms, lake_ms: when staging and when the lake had executed it.
CREATE TABLE erasure (
    gateway TEXT NOT NULL,
    seq INTEGER NOT NULL,
    table_name TEXT,
    row_id TEXT,
    client_id TEXT,
    hlc INTEGER NOT NULL,
    arrival INTEGER NOT NULL,
    requested_ms INTEGER NOT NULL,
    deltas INTEGER NOT NULL,
    row_count INTEGER NOT NULL,
    done_ms INTEGER,
    lake_ms INTEGER,
    PRIMARY KEY (gateway, seq)
) STRICT, WITHOUT ROWID;
CREATE INDEX erasure_by_row ON erasure (gateway, row_id, table_name);
CREATE INDEX erasure_by_client ON erasure (gateway, client_id);
CREATE INDEX erasure_by_hlc ON erasure (gateway, hlc);
