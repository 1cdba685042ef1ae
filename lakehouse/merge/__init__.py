"""The merge of deltas into rows, over Arrow, and the typed columns that follow from it."""
