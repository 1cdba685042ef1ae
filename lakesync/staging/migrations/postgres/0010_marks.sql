-- How far each follower of the lake is, and what the pipeline last reported, as JSON.

CREATE TABLE lakesync.mark (
    name text COLLATE "C" PRIMARY KEY,
    body text NOT NULL
);
