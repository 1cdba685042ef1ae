"""The demo's options and exit code: `python -m examples.flights`, which `scripts/demo` and `lakesync demo` run.

The demo syncs the flights that left New York in 2013: nineteen clients (carriers and airports) write them to a gateway,
and the pipeline carries them into the lake. At the end the lake and all clients are compared with an independent merge
of what the clients wrote. `docs/demo.md` describes it.
"""

from __future__ import annotations

import argparse
import signal
import sys
from pathlib import Path

from examples.flights.data import ALL_DAYS

CHECKOUT = Path(__file__).resolve().parents[2]
"""The folder of the repository."""


def main(arguments: list[str] | None = None) -> int:
    """Run the demo. Return 0 if all comparisons agree, otherwise 1. An error is printed on stderr.

    Args:
        arguments: the command line's arguments; None for those of this process.
    """
    parser = argparse.ArgumentParser(
        prog="scripts/demo", description="Nineteen clients sync New York's flights of 2013."
    )
    length = parser.add_mutually_exclusive_group()
    length.add_argument("--days", type=_days, default=7, help="how many days of flights (default: %(default)s)")
    length.add_argument("--full", dest="days", action="store_const", const=ALL_DAYS, help="all 336,776 flights")
    parser.add_argument("--prove", action="store_true", help="kill, repeat and rebuild, and compare again")
    parser.add_argument("--connectors", action="store_true", help="poll a Jira site and a Salesforce organisation too")
    parser.add_argument("--keep", action="store_true", help="leave the system running at the end")
    parser.add_argument("--json", action="store_true", help="print one JSON object on the last line of stdout")
    parser.add_argument("--data", type=Path, default=CHECKOUT / "lakesync-data" / "demo", help="the data folder")
    given = parser.parse_args(arguments)

    # Imported only now, so that a wrong option is reported at once.
    from rich.markup import escape

    from examples.flights.demo import Demo, Options

    signal.signal(signal.SIGTERM, signal.default_int_handler)  # stops as cleanly as Ctrl-C
    options = Options(
        given.days, given.data, prove=given.prove, keep=given.keep, json=given.json, connectors=given.connectors
    )
    demo = Demo(options)
    result = demo.result
    try:
        result = demo.run()
    except KeyboardInterrupt:
        demo.reporter.line("interrupted")
    except Exception as error:
        result.ok = False
        demo.reporter.line(f"[red]✗ {type(error).__name__}[/red]: {escape(str(error))}")
    if options.json:
        print(result.json())
    return 0 if result.ok else 1


def _days(text: str) -> int:
    """Parse the option `--days`."""
    days = int(text)
    if not 1 <= days <= ALL_DAYS:
        raise argparse.ArgumentTypeError(f"{days} is not between 1 and {ALL_DAYS}")
    return days


if __name__ == "__main__":
    sys.exit(main())
