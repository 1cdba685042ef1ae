"""Several adapters used as one: routed by table, copied, or tiered by age."""
