"""Pure functions from DataFrame to DataFrame: no Dagster, no session, no I/O."""
