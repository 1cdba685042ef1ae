-- Updates of destination tables after a flush of a gateway without a pipeline. set_aside is 1 if all attempts failed.

CREATE TABLE flush_job (
    gateway TEXT NOT NULL,
    set_aside INTEGER NOT NULL,
    job_id TEXT NOT NULL,
    body BLOB NOT NULL,
    PRIMARY KEY (gateway, set_aside, job_id)
) STRICT, WITHOUT ROWID;
