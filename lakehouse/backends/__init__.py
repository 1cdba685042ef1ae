"""Spark tasks that copy deltas between the lake and other backends: destinations, flows, tiers and migrations."""
