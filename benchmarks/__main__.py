"""`python -m benchmarks NAME [options]`: run one benchmark; its figures are the last line, as one JSON object."""

from __future__ import annotations

import argparse
import importlib
import os
import pkgutil
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from benchmarks import suite


def main() -> None:
    """Read the arguments, measure, print."""
    parser = argparse.ArgumentParser(prog="scripts/bench", description=__doc__)
    names = parser.add_subparsers(dest="name", required=True, metavar="NAME")
    for found in pkgutil.iter_modules(suite.__path__):
        module = importlib.import_module(f"{suite.__name__}.{found.name}")
        described = (module.__doc__ or "").strip()
        benchmark = names.add_parser(
            found.name,
            help=described.partition("\n")[0],
            description=described,
            formatter_class=argparse.ArgumentDefaultsHelpFormatter,
        )
        benchmark.add_argument("--json", action="store_true", help="print the last line alone")
        benchmark.add_argument("--folder", type=Path, help="where data is kept meanwhile; default: the system's own")
        module.arguments(benchmark)
        benchmark.set_defaults(run=module.run)
    options = parser.parse_args()
    begun = {"benchmark": options.name, "at": datetime.now(UTC).isoformat(timespec="seconds"), "load": _load()}
    found = begun | options.run(options) | {"load_after": _load()}
    if not options.json:
        for name, value in found.items():
            print(f"{name:>24}  {value}")
    print(msgspec.json.encode(found).decode())


def _load() -> float:
    """What the machine was busy with, besides: the load average of the last minute."""
    return round(os.getloadavg()[0], 2)


if __name__ == "__main__":
    main()
