"""The benchmarks, one module each. `benchmarks.__main__` finds and runs them.

Each module has a docstring, which `--help` shows; `arguments(parser)`, which adds its options; and `run(options)`,
which returns the figures by name.
"""
