"""The benchmarks.

Each module has a docstring, `arguments(parser)` and `run(options) -> dict`, which returns the figures.
"""
