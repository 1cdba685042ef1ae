"""Kill an app that writes with plain SQL, and its gateway, many times; then compare the app's writes with both.

With `--remake` the app also recreates, renames and alters its table, over HTTP with a gateway of its own, and a
DELETE that it did not cause is a failure too. A seed repeats what the app does, and the moments of the kills within a
few milliseconds. The last line of the output is one JSON object. The exit code is 0 if nothing was lost or applied
twice.
"""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from types import ModuleType

from lakesync.client import Client
from lakesync.engine import SyncGateway
from lakesync.model.types import SyncPull
from tests.blackbox.server import Server
from tests.integration.client import app_remaker, app_writer
from tests.integration.client.client_writer import open_gateway
from tests.storm_options import script_parser


def play(folder: Path, kills: int, seed: int) -> dict[str, int]:
    """Kill the app this many times, at different moments, and check that nothing was lost or applied twice.

    Raises:
        AssertionError: a promise was broken.
    """
    dice = random.Random(seed)
    reported: dict[str, int] = {}
    steps = 0
    for life in range(kills):
        lines = _killed_after(folder, dice.randrange(3, 60), seed * 1000 + life)
        wrote = [line.split() for line in lines if line.startswith("wrote") and line.endswith("\n")]
        reported |= {row_id: int(number) for _, row_id, number in wrote}
        steps += len(lines)
    return {"kills": kills, "steps": steps, **_looked_at(folder, reported)}


def play_remaking(folder: Path, kills: int, seed: int) -> dict[str, int]:
    """Kill an app that recreates its table this many times, and compare its rows with its diary.

    Returns:
        Counts: `lost` writes, `spurious_deletes`, other changes that were `invented`, and edits sent `twice`.

    Raises:
        AssertionError: the app failed, or its rows are not those of the gateway.
    """
    dice = random.Random(seed)
    remade = offline = 0
    with closing(Server()) as server:
        for life in range(kills):
            stopped = server.kill if dice.random() < 0.2 else None
            lines = _killed_after(folder, dice.randrange(1, 40), seed * 1000 + life, app_remaker, server.url, stopped)
            remade += sum(line.startswith("remade") for line in lines)
            offline += lines.count("offline\n")
            if stopped:
                server.start()
        with app_remaker.open_app(folder, server.url) as app:
            app.sync()
            assert app.pending() == []
            server.kill()
            found = _compared(folder, app, server.folder / "data", seed)
    return {"kills": kills, "remade": remade, "offline": offline, **found}


def _compared(folder: Path, app: Client, kept: Path, seed: int) -> dict[str, int]:
    """Compare an app, whose diary and pushes are in `folder`, with its gateway, whose data is in `kept`."""
    engine, gateway = open_gateway(kept)
    with closing(engine):
        position = app.coordinator.replica.store.position()
        sent = engine.store.submit("g", lambda commit: commit.known_ids("me", 0, 1 << 62)).result()
        there = _same_rows(app, gateway)
    diary = app.query("SELECT number, row_id, op FROM diary ORDER BY number")
    last = {entry["row_id"]: entry for entry in diary if entry["op"] != "nothing"}
    wrote = {(entry["row_id"], entry["number"]) for entry in diary if entry["op"] == "write"}
    deletes = Counter(entry["row_id"] for entry in diary if entry["op"] in ("delete", "undo"))
    noted = map(json.loads, (folder / "pushed.jsonl").read_text().splitlines())
    pushed = {delta_id: (op, row_id, values) for delta_id, op, row_id, values in noted}.values()
    spurious = Counter(row_id for op, row_id, _ in pushed if op == "DELETE") - deletes
    lost = {
        row_id: (entry, there.get(row_id))
        for row_id, entry in last.items()
        if entry["op"] != "undo"  # of a row that the table did not have again yet, and that the gateway may have
        if there.get(row_id, {}).get("mine") != (entry["number"] if entry["op"] == "write" else None)
    }
    invented = [
        (op, row_id, values)
        for op, row_id, values in pushed
        if (not deletes[row_id] and ("theirs" in values or op == "DELETE"))
        or values.get("theirs") is not None
        or ("mine" in values and (row_id, values["mine"]) not in wrote)
    ]
    for what, found in (("lost", lost), ("spurious deletes", spurious), ("invented", invented)):
        if found:
            print(what, seed, found, file=sys.stderr)
    return {
        "edits": position.edit_count,
        "lost": len(lost),
        "spurious_deletes": spurious.total(),
        "invented": len(invented),
        "twice": len(sent) - position.edit_count,
    }


def _killed_after(
    folder: Path,
    lines: int,
    seed: int,
    app: ModuleType = app_writer,
    url: str = "",
    before: Callable[[], None] | None = None,
) -> list[str]:
    """Kill the app some time after a number of steps; return what it printed.

    Args:
        before: called after the steps, while the app continues.
    """
    dice, moment = random.Random(seed), 0.02 if before is None else 0.3
    command = [sys.executable, str(app.__file__), folder, str(seed), *([url] if url else [])]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        printed = [line for _, line in zip(range(lines), process.stdout, strict=False)]
        if before is not None:
            before()
        with suppress(subprocess.TimeoutExpired):
            process.wait(dice.expovariate(1 / moment))
        process.send_signal(signal.SIGKILL)
        printed += process.stdout.readlines()
    assert process.returncode == -signal.SIGKILL, "the app ended by itself"
    return printed


def _looked_at(folder: Path, reported: dict[str, int]) -> dict[str, int]:
    engine, gateway = open_gateway(folder)
    with closing(engine), app_writer.open_app(folder, gateway) as app:
        before = {row["row_id"]: row["mine"] for row in app["notes"] if row["mine"] is not None}
        app.sync()
        assert app.pending() == []
        position = app.coordinator.replica.store.position()
        sent = engine.store.submit("g", lambda commit: commit.known_ids("me", 0, 1 << 62)).result()
        assert len(sent) == position.edit_count > 0, "the gateway has each edit once"
        here = _same_rows(app, gateway)
        assert {row_id: row["mine"] for row_id, row in here.items() if "mine" in row} == before
        lost = {row_id: number for row_id, number in reported.items() if row_id in before and before[row_id] < number}
        assert not lost, "the database has an older value than one that was reported"
    return {"edits": position.edit_count, "twice": len(sent) - position.edit_count, "lost": len(lost)}


def _same_rows(app: Client, gateway: SyncGateway) -> dict[str, dict[str, object]]:
    """The rows of app and gateway, without NULLs.

    Raises:
        AssertionError: they differ.
    """
    rows: dict[str, dict[str, object]] = {}
    for delta in gateway.handle_pull(SyncPull("auditor", 0, 10_000)).deltas:
        rows.setdefault(delta.row_id, {}).update({cell.column: cell.decoded() for cell in delta.columns})
    here = {
        row.pop("row_id"): {name: value for name, value in row.items() if value is not None} for row in app["notes"]
    }
    there = {row_id: {k: v for k, v in row.items() if v is not None} for row_id, row in rows.items()}
    differing = {row_id for row_id in here.keys() | there.keys() if here.get(row_id) != there.get(row_id)}
    assert not differing, {row_id: (here.get(row_id), there.get(row_id)) for row_id in differing}
    return here


def main() -> None:
    """Run the storm, and print its figures as JSON."""
    parser = script_parser("scripts/client-storm", __doc__, "--remake --storms 100 --kills 6")
    parser.add_argument("--kills", type=int, default=200, help="kills of an app or its gateway (default: 200)")
    parser.add_argument("--seed", type=int, default=1, help="seed of the first app (default: 1)")
    parser.add_argument("--remake", action="store_true", help="let the app recreate, rename and alter its table")
    parser.add_argument(
        "--storms", type=int, default=1, help="with --remake: number of apps, each with the next seed (default: 1)"
    )
    options = parser.parse_args()
    begun = time.monotonic()
    found: Counter[str] = Counter()
    for seed in range(options.seed, options.seed + (options.storms if options.remake else 1)):
        with tempfile.TemporaryDirectory() as folder:
            played = play_remaking if options.remake else play
            found.update(played(Path(folder), options.kills, seed))
    print(json.dumps({**found, "seed": options.seed, "seconds": round(time.monotonic() - begun)}))
    sys.exit(any(found[broken] for broken in ("lost", "twice", "spurious_deletes", "invented")))


if __name__ == "__main__":
    main()
