"""Measurements of the running system: `scripts/bench NAME`.

Each module of `benchmarks.suite` is one benchmark. `server` starts what is measured in a process of its own, `load`
drives it from another, `report` makes the figures.
"""
