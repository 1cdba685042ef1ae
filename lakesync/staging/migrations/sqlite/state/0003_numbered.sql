-- Rows get numbers, by which entries refer to them. Encoded rows that one client sees are then on few pages of the
-- file. The merge state is in a table of its own.

CREATE TEMP TABLE numbered (number INTEGER PRIMARY KEY, old INTEGER NOT NULL UNIQUE);

-- rows of one bucket get neighbouring numbers: of each row's buckets the one with the longest name, probably the smallest
INSERT INTO numbered (old) SELECT old FROM (
    SELECT r.rowid AS old, e.bucket, max(length(b.name))
    FROM entry e CROSS JOIN bucket b ON b.id = e.bucket CROSS JOIN row_state r
        ON r.gateway = b.gateway AND r.table_name = e.table_name AND r.row_id = e.row_id
    WHERE e.inside GROUP BY r.rowid
) ORDER BY bucket, old;
INSERT INTO numbered (old)
    SELECT rowid FROM row_state WHERE rowid NOT IN (SELECT old FROM numbered) ORDER BY rowid;

ALTER TABLE row_state RENAME TO row_before;
ALTER TABLE entry RENAME TO entry_before;
DROP INDEX entry_feed;

-- spelled: NULL if it must be encoded from the body, if the row is not visible, or if only its entries are written yet
CREATE TABLE row_state (
    number INTEGER PRIMARY KEY,
    gateway TEXT NOT NULL,
    table_name TEXT NOT NULL,
    row_id TEXT NOT NULL,
    deltas INTEGER NOT NULL DEFAULT 0,
    writers_floor INTEGER NOT NULL DEFAULT 0,
    writers BLOB NOT NULL DEFAULT x'5b5d',
    spelled BLOB,
    UNIQUE (gateway, table_name, row_id)
) STRICT;
CREATE TABLE row_body (
    number INTEGER PRIMARY KEY,
    body BLOB NOT NULL
) STRICT;
CREATE TABLE entry (
    bucket INTEGER NOT NULL,
    number INTEGER NOT NULL,
    first INTEGER NOT NULL,
    since INTEGER NOT NULL,
    left_at INTEGER NOT NULL,
    changed INTEGER NOT NULL,
    inside INTEGER NOT NULL,
    PRIMARY KEY (bucket, number)
) STRICT, WITHOUT ROWID;

INSERT INTO row_state
    SELECT n.number, r.gateway, r.table_name, r.row_id, r.deltas, r.writers_floor, r.writers, r.spelled
    FROM numbered n CROSS JOIN row_before r ON r.rowid = n.old ORDER BY n.number;
INSERT INTO row_body
    SELECT n.number, r.body FROM numbered n CROSS JOIN row_before r ON r.rowid = n.old ORDER BY n.number;
INSERT INTO row_state (gateway, table_name, row_id)
    SELECT b.gateway, e.table_name, e.row_id FROM entry_before e CROSS JOIN bucket b ON b.id = e.bucket WHERE true
    ON CONFLICT DO NOTHING;
INSERT INTO entry
    SELECT e.bucket, r.number, e.first, e.since, e.left_at, e.changed, e.inside
    FROM entry_before e CROSS JOIN bucket b ON b.id = e.bucket CROSS JOIN row_state r
        ON r.gateway = b.gateway AND r.table_name = e.table_name AND r.row_id = e.row_id;
CREATE INDEX entry_feed ON entry (bucket, changed, number, first, since, left_at, inside);

DROP TABLE row_before;
DROP TABLE entry_before;
DROP TABLE numbered;
