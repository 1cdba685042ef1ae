"""Dagster resources: Spark sessions, the lake's names, the staging store and the connection for pushes."""
