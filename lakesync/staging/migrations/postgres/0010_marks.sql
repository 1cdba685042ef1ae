-- The pipeline's marks: how far each part of it is, and its latest report.

CREATE TABLE lakesync.mark (
    name text COLLATE "C" PRIMARY KEY,
    body text NOT NULL
);
