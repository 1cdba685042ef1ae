"""Dagster resources: Spark sessions, the lake's names, the staging store and the way into the gateways."""
