"""Destinations, flows, tiers and migrations: Spark tasks that read and write backends other than the lake."""
