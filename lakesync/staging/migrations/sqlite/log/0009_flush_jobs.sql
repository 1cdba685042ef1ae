-- Work for a destination's tables that follows a flush of the gateway's own; set_aside: 1 where it failed for good.

CREATE TABLE flush_job (
    gateway TEXT NOT NULL,
    set_aside INTEGER NOT NULL,
    job_id TEXT NOT NULL,
    body BLOB NOT NULL,
    PRIMARY KEY (gateway, set_aside, job_id)
) STRICT, WITHOUT ROWID;
