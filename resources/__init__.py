"""The only makers of sessions and connections: Spark, staging and the writing side of the lake."""
