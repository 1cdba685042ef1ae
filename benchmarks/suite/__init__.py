"""The benchmarks. A module has a docstring, `arguments(parser)` and `run(options) -> dict`, the figures."""
