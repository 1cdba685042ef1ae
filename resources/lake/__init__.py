"""The only writer of the lake: `history` has `deltas`, `state` the tables made of it, `cuts` the checkpoints made of
those, `landing` what connectors bring, `erasure` what has to go; beside them stands what all of them write with.

Every function takes the session of its caller and the lake's names, and is safe to repeat. Most modules bring pyspark
with them, more than a second of CPU: steps import them when they run, so that the code location, which runs none,
loads without.
"""
