-- Updates of destination tables after a flush of a gateway without a pipeline. set_aside is 1 if all attempts failed.

CREATE TABLE lakesync.flush_job (
    gateway text COLLATE "C" NOT NULL,
    set_aside integer NOT NULL,
    job_id text COLLATE "C" NOT NULL,
    body bytea NOT NULL,
    PRIMARY KEY (gateway, set_aside, job_id)
);
