"""The benchmarks. Each module has one, or several of one subject, in `BENCHMARKS`; `benchmarks.__main__` runs them."""

from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from typing import Any, NamedTuple


class Benchmark(NamedTuple):
    """A benchmark, as `scripts/bench` offers it."""

    name: str
    """Its name on the command line."""
    description: str | None
    """What it measures, and what its figures mean. The first line is the summary; None only without docstrings."""
    arguments: Callable[[ArgumentParser], None]
    """Adds the benchmark's options to a parser."""
    run: Callable[[Namespace], dict[str, Any]]
    """Runs it with the parsed options, and returns the figures by name."""
