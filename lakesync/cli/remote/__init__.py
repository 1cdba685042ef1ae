"""Commands that ask a running gateway, or the Dagster of its pipeline."""
