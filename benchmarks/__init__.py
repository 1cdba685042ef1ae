"""Measurements of the running system: `scripts/bench NAME`.

Each module of `benchmarks.suite` is one benchmark. `server` starts the measured process, `load` drives it from another
process and computes the figures.
"""
