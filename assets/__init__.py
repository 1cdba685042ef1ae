"""The pipeline's Dagster assets and asset checks: they declare, plan, submit and report. `lakehouse` does the work."""
