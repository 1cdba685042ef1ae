-- Each read of the backlog asks when a shard was last flushed.

CREATE INDEX batch_by_end ON batch (gateway, shard, epoch, to_seq);
