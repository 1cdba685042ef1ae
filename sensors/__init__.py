"""Dagster sensors: they compare marks in staging and the lake, request runs, and send alerts. They do no other work."""
