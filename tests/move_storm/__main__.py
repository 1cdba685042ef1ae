"""Kill migrations, tiers, flows and loads at every step of every page, and let another process continue.

A transfer is repeated for each step and page. Afterwards source and target are compared with the source before, delta
by delta. The last line of the output is one JSON object. The exit code is 0 if no delta was lost, doubled or changed,
and no page was copied again.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psycopg
import pymysql
import requests

from lakesync.adapters import DeltaBatch, SqliteAdapter, StoredDelta
from lakesync.model.crash_points import VARIABLE
from tests.backend_servers import mariadb_server, s3_server
from tests.conformance.book import make_delta
from tests.forked import Forked
from tests.move_storm.moves import MOVES, POINTS, Verdict, held, judged, points
from tests.postgres_server import postgres_server
from tests.storm_options import script_parser

_KILLED = -9
_SECONDS = 120
_ROWS = 20


def main() -> int:
    """Run the transfers, and return the exit code."""
    parser = script_parser("scripts/move-storm", __doc__, "--pages 4 --moves migration,flow --targets sqlite,s3")
    parser.add_argument("--pages", type=int, default=8, help="pages of each transfer, an even number (default: 8)")
    parser.add_argument("--page", type=int, default=50, help="deltas of a page (default: 50)")
    parser.add_argument("--moves", default=",".join(MOVES), help="kinds of transfers (default: %(default)s)")
    parser.add_argument(
        "--targets", default="sqlite,file,postgresql", help="schemes, also mysql and s3 (default: %(default)s)"
    )
    options = parser.parse_args()
    if options.pages < 2 or options.pages % 2:  # a range of one page has no progress before its end
        parser.error(f"--pages {options.pages}: give an even number, so that each range has two pages or more")
    total, reports = options.pages * options.page, []
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="lakesync-storm-")))
        places = _Places(folder, stack)
        _fill(places.start, total)
        before = held(f"sqlite://{places.start}")
        for move in options.moves.split(","):
            for scheme in options.targets.split(","):
                verdicts = list(_storm(move, scheme, places, before, options.page))
                reports.append(_report(move, scheme, total, verdicts))
                print(reports[-1], flush=True)
    whole = {
        name: sum(each[name] for each in reports)
        for name in ("kills", "lost", "doubled", "touched", "began_again", "fewer_copied")
    }
    print(json.dumps({"deltas_a_move": total, **whole, "moves": reports}))
    bad = ("lost", "doubled", "touched", "began_again")
    return 1 if any(whole[name] for name in bad) or not whole["kills"] else 0


class _Places:
    """Fresh adapters for each transfer, on servers that are started when the first one is needed."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.folder = folder
        self.start = folder / "start.db"
        self._stack = stack
        self._servers: dict[str, str] = {}
        self._made = 0

    def fresh(self, scheme: str) -> tuple[str, str]:
        """The URIs of a copy of the source and of an empty target."""
        self._made += 1
        source = self.folder / f"source-{self._made}.db"
        shutil.copy(self.start, source)
        make = {"postgresql": self._schema, "mysql": self._database, "s3": self._bucket}.get(scheme)
        if make is not None:
            return f"sqlite://{source}", make()
        ending = ".db" if scheme == "sqlite" else ""
        return f"sqlite://{source}", f"{scheme}://{self.folder}/target-{self._made}{ending}"

    def _schema(self) -> str:
        uri = self._server("postgresql", lambda: self._stack.enter_context(postgres_server()).uri)
        with psycopg.connect(uri, autocommit=True) as sql:
            sql.execute(f"CREATE SCHEMA storm_{self._made}".encode())
        return f"{uri}?options=-csearch_path%3Dstorm_{self._made}"

    def _database(self) -> str:
        uri = self._server("mysql", lambda: self._stack.enter_context(mariadb_server()).uri)
        port = int(uri.rpartition(":")[2])
        with pymysql.connect(host="127.0.0.1", port=port, user="root") as sql, sql.cursor() as cursor:
            cursor.execute(f"CREATE DATABASE storm_{self._made}")
        return f"{uri}/storm_{self._made}"

    def _bucket(self) -> str:
        endpoint = self._server("s3", lambda: self._stack.enter_context(s3_server()))
        requests.put(f"{endpoint}/storm-{self._made}", timeout=30).raise_for_status()
        return f"s3://storm-{self._made}/a?endpoint={endpoint}&region=us-east-1&access_key=k&secret_key=s"

    def _server(self, scheme: str, start: Callable[[], str]) -> str:
        if scheme not in self._servers:
            self._servers[scheme] = start()
        return self._servers[scheme]


def _fill(path: Path, count: int) -> None:
    adapter = SqliteAdapter(path)
    made = [make_delta("c", n, f"r{n % _ROWS}", size=n) for n in range(1, count + 1)]
    adapter.insert_deltas(DeltaBatch("g.1", "g", tuple(StoredDelta("g", 256 * each.hlc, each) for each in made)))
    adapter.close()


def _storm(move: str, scheme: str, places: _Places, before: Any, page: int) -> Iterator[Verdict]:
    """Kill one run at each passage of each crash point, until there is no further passage."""
    for point in points(move, f"{scheme}:"):
        passage = 1
        while True:
            source, target = places.fresh(scheme)
            environment = {**os.environ, VARIABLE: f"{point}:{passage}", "LAKESYNC_CONFIG": ""}
            killed = Forked(MOVES[move], source, target, page, environment=environment).wait(_SECONDS)
            if killed != _KILLED:
                break
            ended = MOVES[move](source, target, page)
            yield judged(move, point, source, target, before, ended)
            passage += 1
        assert passage > 1, f"{move} to {scheme} never reached {point}"


def _report(move: str, scheme: str, total: int, verdicts: list[Verdict]) -> dict[str, Any]:
    """`began_again`: killed after a completed page, and yet the next run copied everything."""
    return {
        "move": move,
        "to": scheme,
        "kills": len(verdicts),
        "lost": sum(each.lost for each in verdicts),
        "doubled": sum(each.doubled for each in verdicts),
        "touched": sum(each.touched for each in verdicts),
        "began_again": sum(each.copied >= total for each in verdicts if each.point == POINTS[move][-1]),
        "fewer_copied": sum(each.copied < total for each in verdicts),
    }


if __name__ == "__main__":
    sys.exit(main())
