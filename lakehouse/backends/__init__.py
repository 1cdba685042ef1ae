"""Destinations, flows, tiers and migrations: tasks of Spark that read and write backends beside the lake."""
