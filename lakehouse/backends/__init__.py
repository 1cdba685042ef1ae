"""Work on the backends beside the lake, done by tasks of Spark: destinations, flows, tiers and migrations."""
