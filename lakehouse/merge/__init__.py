"""The merge of deltas into rows over Arrow, and the typed columns that are filled from merged values."""
