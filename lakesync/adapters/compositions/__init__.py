"""Several adapters used as one: routed by table, replicated, or tiered by age."""
