-- Work for a destination's tables that follows a flush of the gateway's own; set_aside: 1 where it failed for good.

CREATE TABLE lakesync.flush_job (
    gateway text COLLATE "C" NOT NULL,
    set_aside integer NOT NULL,
    job_id text COLLATE "C" NOT NULL,
    body bytea NOT NULL,
    PRIMARY KEY (gateway, set_aside, job_id)
);
