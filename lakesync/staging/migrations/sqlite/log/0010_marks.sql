-- How far each follower of the lake is, and what the pipeline last reported, as JSON.

CREATE TABLE mark (
    name TEXT PRIMARY KEY,
    body TEXT NOT NULL
) STRICT, WITHOUT ROWID;
