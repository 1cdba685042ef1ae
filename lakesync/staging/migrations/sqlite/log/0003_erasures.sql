-- What was erased for good, and what the lake must erase.

-- Either table_name and row_id, or client_id. hlc: what is stamped up to there is erased. arrival: what the lake holds
-- of it is at or below. done_ms: when staging was done; lake_ms: when the lake was.
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
