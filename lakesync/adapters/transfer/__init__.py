"""Moves deltas between adapters: followers of the lake, flows, loads, migrations and restores."""
