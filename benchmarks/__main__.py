"""`python -m benchmarks NAME [options]` runs one benchmark. The last line of its output is one JSON object."""

from __future__ import annotations

import argparse
import importlib
import inspect
import os
import pkgutil
import time
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from benchmarks import suite

_CALLS = 500_000
"""Number of empty calls that are timed, to see how fast the machine is."""
_EXAMPLES = """examples:
  scripts/bench push --clients 16 --deltas 2000000
  scripts/bench pull --rows 1000000 --json
  scripts/bench push --help                         its options"""


def main() -> None:
    """Parse the arguments, run the benchmark, print its figures."""
    parser = argparse.ArgumentParser(
        prog="scripts/bench",
        description=__doc__,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    names = parser.add_subparsers(dest="name", required=True, metavar="NAME")
    for found in pkgutil.iter_modules(suite.__path__):
        for each in importlib.import_module(f"{suite.__name__}.{found.name}").BENCHMARKS:
            description = inspect.cleandoc(each.description or "")
            benchmark = names.add_parser(
                each.name,
                help=description.partition("\n")[0],
                description=description,
                formatter_class=argparse.ArgumentDefaultsHelpFormatter,
            )
            benchmark.add_argument("--json", action="store_true", help="print only the JSON object")
            benchmark.add_argument("--folder", type=Path, help="folder for temporary data; default: the system's")
            each.arguments(benchmark)
            benchmark.set_defaults(run=each.run)
    options = parser.parse_args()
    begun = {"benchmark": options.name, "at": datetime.now(UTC).isoformat(timespec="seconds"), **_machine("")}
    found = begun | options.run(options) | _machine("_after")
    if not options.json:
        for name, value in found.items():
            print(f"{name:>24}  {value}")
    print(msgspec.json.encode(found).decode())


def _machine(when: str) -> dict[str, float]:
    """Return the machine's load average of the last minute, and the nanoseconds of an empty Python call.

    Figures of two runs can be compared only if both are about the same.

    Args:
        when: suffix of the names.
    """
    begun = time.process_time()
    for _ in range(_CALLS):
        _nothing()
    spent = time.process_time() - begun
    return {f"load{when}": round(os.getloadavg()[0], 2), f"ns_per_call{when}": round(spent / _CALLS * 1e9, 1)}


def _nothing() -> None:
    """Do nothing."""


if __name__ == "__main__":
    main()
