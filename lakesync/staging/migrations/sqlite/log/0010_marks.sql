-- The pipeline's marks: how far each part of it is, and its latest report.

CREATE TABLE mark (
    name TEXT PRIMARY KEY,
    body TEXT NOT NULL
) STRICT, WITHOUT ROWID;
