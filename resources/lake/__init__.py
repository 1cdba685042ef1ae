"""The only writer of the lake: `deltas`, the state tables, and cuts.

Every function takes the session of its caller and the lake's names, and is safe to repeat. Most modules bring pyspark
with them, more than a second of CPU: steps import them when they run, so that the code location, which runs none,
loads without.
"""
