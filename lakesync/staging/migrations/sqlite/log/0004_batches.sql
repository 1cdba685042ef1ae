-- When a shard was last flushed is asked with every look at what waits.

CREATE INDEX batch_by_end ON batch (gateway, shard, epoch, to_seq);
