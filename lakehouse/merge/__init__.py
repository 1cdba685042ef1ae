"""The merge of deltas into rows over Arrow tables, and the conversion of merged values to the types of a schema."""
