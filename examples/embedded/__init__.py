"""A shop that keeps its own gateway: no server, no pipeline, no Spark."""
