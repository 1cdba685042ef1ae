"""Commands that call a running gateway, or the Dagster of its pipeline."""
