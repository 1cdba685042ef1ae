"""The Python client in one process: tracked local writes, remote deltas applied, a first sync, and imports.

No network is involved: pages and checkpoint frames are in memory in their HTTP form, and a client's own `sync` decodes,
merges and commits them durably. CPU seconds are the process's own.
"""

from __future__ import annotations

import os
import resource
import sqlite3
import statistics
import subprocess
import sys
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec

from benchmarks import server
from lakesync.client.client import Client
from lakesync.client.core import CoreLimits, FetchCheckpoint
from lakesync.client.factory import open_client
from lakesync.client.sync.checkpoint_load import load_checkpoint
from lakesync.client.transports.base import Checkpoint, SyncTransport
from lakesync.model.delta import delta_id
from lakesync.model.errors import NotFoundError
from lakesync.model.types import ColumnValue, Op, PushResult, RowDelta, SyncPull, SyncPush, SyncResponse
from lakesync.wire import json as wire_json
from lakesync.wire import protobuf
from lakesync.wire.pages import decode_page

_START = 1_780_000_000_000 << 16
_COLUMNS = (("title", "string"), ("team", "string"), ("n", "number"), ("done", "boolean"))
_SCHEMA = {"table": "todos", "columns": [{"name": name, "type": kind} for name, kind in _COLUMNS]}
_FRAME_ROWS = 50_000
_MIB = 1 << 20


def arguments(parser: ArgumentParser) -> None:
    """Add the benchmark's options."""
    parser.add_argument("--deltas", type=int, default=100_000, help="remote deltas to apply")
    parser.add_argument("--rows", type=int, default=1_000_000, help="rows of the checkpoint")
    parser.add_argument("--page", type=int, default=8000, help="deltas in a page")
    parser.add_argument("--transactions", type=int, default=200, help="of 100 local writes each")


def run(options: Namespace) -> dict[str, Any]:
    """Run the benchmark."""
    with server.folder(options.folder) as place:
        found = _imports(place) | _writes(place, options.transactions)
        found |= _pages(place, options.deltas, options.page)
        found |= _apart(place, options.rows)
        return found | {"first_sync_ratio": round(found["first_sync_cpu_rate"] / found["plain_insert_cpu_rate"], 2)}


class _Ready:
    """A gateway with prepared pages in their HTTP form."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []

    def pull(self, _: SyncPull) -> SyncResponse:
        """Return the next page, whatever is requested."""
        return decode_page(self.bodies.pop(0))

    def push(self, push: SyncPush) -> PushResult:
        """Do nothing."""
        raise NotFoundError(f"nobody takes the {len(push.deltas)} deltas of {push.client_id!r}")

    def close(self) -> None:
        """Do nothing."""


def _client(place: Path, name: str, page: int = 1000, transport: SyncTransport | None = None) -> Client:
    limits = CoreLimits(pull_deltas=page)
    transport = transport or _Ready()
    return open_client(place / f"{name}.db", transport=transport, client_id=name, schemas=[_SCHEMA], limits=limits)


def _imports(place: Path) -> dict[str, Any]:
    """Measure imports of modules that are already compiled."""
    surroundings = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    surroundings["PYTHONPYCACHEPREFIX"] = str(place / "compiled")

    def spent(*command: str) -> float:
        used: list[float] = []
        for _ in range(5):
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            subprocess.run([sys.executable, *command], check=True, stdout=subprocess.DEVNULL, env=surroundings)
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            used.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
        return round(min(used) * 1000, 1)

    return {
        "python_cpu_ms": spent("-c", "pass"),
        "import_client_cpu_ms": spent("-c", "import lakesync.client"),
        "import_open_cpu_ms": spent("-c", "import lakesync; lakesync.open"),
        "help_cpu_ms": spent("-c", "import sys; sys.argv[1:] = ['--help']; from lakesync.cli import main; main()"),
    }


def _writes(place: Path, transactions: int) -> dict[str, Any]:
    """Measure local writes in transactions of 100: through the table, by SQL, and to an untracked database."""
    found: dict[str, Any] = {}
    with _client(place, "writer") as client:
        table = client["todos"]

        def by_table(number: int) -> None:
            with client.transaction():
                for each in range(100):
                    table.insert({"title": "Buy oat milk", "n": each}, row_id=f"{number}-{each}")

        def by_sql(number: int) -> None:
            _insert(client.conn, f"sql-{number}")

        found["write_us"], found["write_p99_us"], found["write_cpu_us"] = _each(by_table, transactions)
        found["sql_write_us"], _, found["sql_write_cpu_us"] = _each(by_sql, transactions)
        begun = time.process_time()
        count = len(client.pending())
        found["record_us"] = round((time.process_time() - begun) / count * 1e6, 1)
    with closing(sqlite3.connect(place / "plain.db")) as plain:
        plain.executescript("PRAGMA journal_mode = WAL; CREATE TABLE todos (row_id TEXT PRIMARY KEY, title, n)")
        found["untracked_us"], _, found["untracked_cpu_us"] = _each(lambda n: _insert(plain, f"sql-{n}"), transactions)
    return found


def _insert(db: sqlite3.Connection, name: str) -> None:
    for place in range(100):
        db.execute("INSERT INTO todos (row_id, title, n) VALUES (?, 'Buy oat milk', ?)", (f"{name}-{place}", place))
    db.commit()


def _each(work: Callable[[int], None], times: int) -> tuple[float, float, float]:
    """Return microseconds per write of a hundred with commit: median, 99th percentile, and CPU time."""
    spent = []
    cpu = time.process_time()
    for number in range(times):
        begun = time.perf_counter()
        work(number)
        spent.append((time.perf_counter() - begun) / 100 * 1e6)
    cpu = (time.process_time() - cpu) / times / 100 * 1e6
    return round(statistics.median(spent), 1), round(sorted(spent)[int(times * 0.99)], 1), round(cpu, 1)


def _pages(place: Path, deltas: int, page: int) -> dict[str, Any]:
    """Return JSON pages of INSERTs of new rows, then of UPDATEs of all of them."""
    found: dict[str, Any] = {}
    transport = _Ready()
    with _client(place, "reader", page, transport) as client:
        rounds: list[tuple[str, Op, int]] = [("insert", "INSERT", _START), ("update", "UPDATE", _START + (1 << 32))]
        for name, op, hlc in rounds:
            transport.bodies = list(_bodies(_deltas(op, deltas, hlc), page, hlc))
            begun, cpu = time.perf_counter(), time.process_time()
            pulled = client.coordinator.pull_from_gateway()
            found[f"{name}_rate"] = round(deltas / (time.perf_counter() - begun))
            found[f"{name}_cpu_rate"] = round(deltas / (time.process_time() - cpu))
            assert pulled == deltas, pulled
        assert len(client["todos"]) == deltas
    found |= _plain(place, deltas, page)
    for name in ("insert", "update"):
        found[f"{name}_ratio"] = round(found[f"{name}_cpu_rate"] / found[f"plain_{name}_cpu_rate"], 2)
    return found


def _plain(place: Path, deltas: int, page: int) -> dict[str, Any]:
    """Write the same rows as Python values with `executemany` to an untracked table, one commit per page."""
    ways: list[tuple[str, Op, str]] = [
        ("insert", "INSERT", "INSERT INTO todos (title, team, n, done, row_id) VALUES (?, ?, ?, ?, ?)"),
        ("update", "UPDATE", "UPDATE todos SET title = ?, n = ? WHERE row_id = ?"),
    ]
    found: dict[str, Any] = {}
    with closing(sqlite3.connect(place / "plain-pages.db", isolation_level=None)) as db:
        db.executescript("PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; PRAGMA cache_size = -32000")
        db.execute(
            "CREATE TABLE todos (row_id TEXT PRIMARY KEY NOT NULL, title TEXT, team TEXT, n NUMERIC, done BOOLEAN)"
        )
        for name, op, statement in ways:
            rows = [
                (*(cell.decoded() for cell in delta.columns), delta.row_id) for delta in _deltas(op, deltas, _START)
            ]
            cpu = time.process_time()
            for start in range(0, deltas, page):
                db.execute("BEGIN")
                db.executemany(statement, rows[start : start + page])
                db.execute("COMMIT")
            found[f"plain_{name}_cpu_rate"] = round(deltas / (time.process_time() - cpu))
    return found


def _bodies(deltas: Iterator[RowDelta], page: int, hlc: int) -> Iterator[bytes]:
    taken: list[RowDelta] = []
    pages: list[list[RowDelta]] = []
    for delta in deltas:
        taken.append(delta)
        if len(taken) == page:
            pages.append(taken)
            taken = []
    pages += [taken] if taken else []
    for number, each in enumerate(pages, 1):
        yield wire_json.encode_response(SyncResponse(tuple(each), hlc + (number << 8), number < len(pages)))


def _deltas(op: Op, count: int, hlc: int) -> Iterator[RowDelta]:
    names = [name for name, _ in _COLUMNS]
    for number in range(count):
        row_id = f"{number * 2_654_435_761 % (1 << 32):08x}-{number:08x}"
        values: list[Any] = [f"Buy oat milk, number {number}", f"team-{number % 100}", number, number % 2 == 0]
        if op == "UPDATE":
            values = values[:1] + values[2:3]
        chosen = names if op == "INSERT" else [names[0], names[2]]
        columns = tuple(map(ColumnValue.of, chosen, values))
        who = f"client-{number % 50}"
        name = delta_id(client_id=who, hlc=hlc + number, table="todos", row_id=row_id, columns=columns)
        yield RowDelta(op, "todos", row_id, who, columns, hlc + number, name)


def _apart(place: Path, rows: int) -> dict[str, Any]:
    """Run the first sync in a process of its own, to measure its memory."""
    frames = place / "frames"
    with frames.open("wb") as file:
        taken: list[RowDelta] = []
        for delta in _deltas("INSERT", rows, _START):
            taken.append(delta)
            if len(taken) == _FRAME_ROWS:
                _put(file, taken)
                taken = []
        if taken:
            _put(file, taken)
    code = f"from benchmarks.suite.client import first_sync; first_sync({str(place)!r})"
    done = subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.PIPE)
    found = msgspec.json.decode(done.stdout)
    assert found.pop("rows") == rows
    return {f"first_sync_{name}": value for name, value in found.items()}


def _put(file: Any, deltas: list[RowDelta]) -> None:
    message = protobuf.encode_response(SyncResponse(tuple(deltas), _START))
    file.write(len(message).to_bytes(4, "big") + message)


def first_sync(folder: str) -> None:
    """Load a folder's frames into a new client, and print figures as JSON."""
    place = Path(folder)
    with _client(place, "newcomer") as client:
        replica = client.coordinator.replica
        base = _peak_mib()
        begun, cpu = time.perf_counter(), time.process_time()
        replica.core.request_pull()
        assert isinstance(replica.next_request(), FetchCheckpoint)
        loaded = load_checkpoint(replica, Checkpoint(_START, _frames(place / "frames")), lambda _: None)
        seconds, cpu = time.perf_counter() - begun, time.process_time() - cpu
        assert len(client["todos"]) == loaded.rows
    found = {
        "rows": loaded.rows,
        "rate": round(loaded.rows / seconds),
        "cpu_rate": round(loaded.rows / cpu),
        "peak_mib": _peak_mib(),
        "base_mib": base,
        "file_mib": round((place / "newcomer.db").stat().st_size / _MIB),
    }
    print(msgspec.json.encode(found).decode())


def _peak_mib() -> int:
    """Return the process's peak memory; `getrusage` would include the parent's."""
    (line,) = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM:")]
    return int(line.split()[1]) // 1024


def _frames(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while prefix := file.read(4):
            yield file.read(int.from_bytes(prefix, "big"))
