"""A shop with an embedded gateway: no server, pipeline or Spark."""
