"""Commands that use a whole pipeline: status, checkpoint and backfill, with a real `lakesync up`."""

import json
import sqlite3
import time
from contextlib import ExitStack, closing

import pytest
import requests

from lakesync.cli.dagster_client import DagsterClient
from lakesync.wire.frames import read_checkpoint
from lakesync.wire.protobuf import decode_response
from tests.e2e.up_support import Up
from tests.mute_server import mute_server

TODOS = {"table": "todos", "columns": [{"name": "title", "type": "string"}, {"name": "n", "type": "number"}]}
ROWS = 30


@pytest.mark.deep
@pytest.mark.timeout(900)
def test_status_checkpoint_and_backfill_report_pushed_rows(up):
    up.start()
    shop = ("--gateway", "shop")
    up.folder.parent.joinpath("todos.json").write_text(json.dumps(TODOS))
    lines = [json.dumps({"id": f"t{number}", "title": "Buy oat milk", "n": number}) for number in range(ROWS)]
    up.folder.parent.joinpath("todos.jsonl").write_text("\n".join(lines))

    assert up.ask("schema", "apply", "todos.json", *shop) == "todos: version 1\n"
    up.ask("push", "todos.jsonl", "--table", "todos", "--id", "id", "--client", "alice", *shop)
    before = json.loads(up.ask("status", "--json", *shop))
    assert [each["clientId"] for each in before["clients"]] == ["alice"]

    up.ask("flush", "--wait", "300", *shop)
    up.wait(lambda: json.loads(up.ask("status", "--json", *shop))["checkpoint"] is not None, 300)
    after = json.loads(up.ask("status", "--json", *shop))
    assert (after["unflushedDeltas"], after["oldestUnflushedSeconds"], after["unanswered"]) == (0, None, [])
    assert after["checkpoint"]["rows"] == ROWS
    (todos,) = [each for each in after["tables"] if each["table"] == "todos"]
    assert todos["mergedMs"] == after["newestMs"]
    assert after["runs"][0]["jobName"]

    assert json.loads(up.ask("checkpoint", "show", "--json", *shop))["served"]
    fetched = json.loads(up.ask("checkpoint", "fetch", "frames.bin", "--client", "newcomer", "--json", *shop))
    with up.folder.parent.joinpath("frames.bin").open("rb") as file:
        deltas = [delta for frame in read_checkpoint(file) for delta in decode_response(frame).deltas]
    assert sorted(delta.row_id for delta in deltas) == sorted(f"t{number}" for number in range(ROWS))
    assert fetched["deltas"] == len(deltas)

    def assets():
        return {each["asset"] for each in map(json.loads, up.ask("backfill", "--json").splitlines())}

    up.wait(lambda: "tables/todos" in assets(), 120)
    today = time.strftime("%Y-%m-%d", time.gmtime(after["newestMs"] / 1000))
    days = up.ask("backfill", "tables/todos", "--from", today, "--dry-run", "--json").splitlines()
    assert json.loads(days[0]) == {"asset": "tables/todos", "partition": today}
    both = ("deltas", "tables/todos", "--from", today, "--to", today)
    made, *partitions = map(json.loads, up.ask("backfill", *both, "--wait", "300", "--json").splitlines())
    assert made["status"] in ("COMPLETED", "COMPLETED_SUCCESS")
    assert set(made["runs"].values()) == {"SUCCESS"}
    reports = {(each["asset"], each["partition"]): each["report"] for each in partitions}
    assert reports["tables/todos", today]["deltas_in"] == ROWS
    of_deltas = reports["deltas", today]
    assert (of_deltas["deltas_in"], of_deltas["dagster/partition_row_count"]) == (0, ROWS)
    assert of_deltas["ledger_equals_lake"] is True
    up.ask("backfill", "tables/nothing", "--from", today, code=5)
    assert json.loads(up.ask("query", "SELECT count(*) AS n FROM todos", "--json")) == {"n": ROWS}


COPY = """
[adapters]
copy = "sqlite://{folder}/copy.db"

[destinations.shop]
to = "copy"
"""


@pytest.fixture
def shop(tmp_path):
    """A `lakesync up` with a destination in which a table of another user has the name of `todos`."""
    with closing(sqlite3.connect(tmp_path / "copy.db")) as db:
        db.execute("CREATE TABLE todos (owner TEXT)")
    running = Up(tmp_path / "data", COPY.format(folder=tmp_path))
    yield running
    running.end()


@pytest.mark.deep
@pytest.mark.timeout(900)
def test_a_suspended_destination_table_is_reported_everywhere_and_retried(shop):
    shop.start()
    folder, mine = shop.folder.parent, ("--gateway", "shop")
    folder.joinpath("todos.json").write_text(json.dumps(TODOS))
    lines = [json.dumps({"id": f"t{number}", "title": "Buy oat milk", "n": number}) for number in range(ROWS)]
    folder.joinpath("todos.jsonl").write_text("\n".join(lines))
    shop.ask("schema", "apply", "todos.json", *mine)
    shop.ask("push", "todos.jsonl", "--table", "todos", "--id", "id", "--client", "alice", *mine)
    shop.ask("flush", "--wait", "300", *mine)

    def set_aside():
        return json.loads(shop.ask("status", "--json", *mine))["deadLetters"]

    shop.wait(set_aside, 300)
    (aside,) = set_aside()
    entry = "shop/copy!todos"
    assert (aside["kind"], aside["name"], aside["count"]) == ("destination", entry, 1)
    assert f"1 of destination {entry}" in shop.ask("status", *mine)
    metrics = requests.get(shop.report()["gateway"]["url"] + "/metrics", timeout=30).text
    assert f'kind="destination",name="{entry}"}} 1.0' in metrics
    listed = [json.loads(line) for line in shop.ask("dlq", "list", "--json", *mine).splitlines()]
    assert [(each["id"], each["kind"]) for each in listed] == [(entry, "destination")]
    assert "todos" in listed[0]["why"]

    with closing(sqlite3.connect(folder / "copy.db")) as db:
        db.execute("ALTER TABLE todos RENAME TO theirs")
    done = json.loads(shop.ask("dlq", "retry", entry, "--json"))
    assert (done["retried"], done["asset"]) == (entry, "destinations/shop/copy")
    assert done["runId"]

    def rows():
        with closing(sqlite3.connect(folder / "copy.db")) as db:
            if not db.execute("SELECT 1 FROM sqlite_master WHERE name = 'todos'").fetchone():
                return 0
            return db.execute("SELECT count(*) FROM todos").fetchone()[0]

    shop.wait(lambda: rows() == ROWS, 120)
    shop.wait(lambda: not set_aside(), 60)
    assert shop.ask("dlq", "list", "--json", *mine) == ""


BOUND = 600
"""Seconds within which a push is in the checkpoint, on a machine that is ten times slower than a usual one."""


@pytest.fixture
def hanging(tmp_path):
    """A `lakesync up` with four destinations that hang: two before the login, two after it."""
    with ExitStack() as closing_after:
        muted = [closing_after.enter_context(mute_server(logs_in=number > 1)) for number in range(4)]
        schemes = ("mysql", "postgresql", "postgresql", "postgresql")
        settings = ["[adapters]"]
        for number, scheme in enumerate(schemes):
            (tmp_path / f"hung{number}").write_text(f"{scheme}://nobody@127.0.0.1:{muted[number].port}/nothing")
            settings.append(f'hung{number} = "file:{tmp_path}/hung{number}"')
        settings += [f'[destinations.hung{number}]\nto = "hung{number}"' for number in range(4)]
        running = Up(tmp_path / "data", "\n".join(settings))
        yield running, muted
        running.end()


@pytest.mark.deep
@pytest.mark.timeout(3000)
def test_four_hanging_destinations_do_not_stop_flushes_and_a_run_that_cannot_start_is_reported(hanging):
    shop, muted = hanging
    shop.start()
    folder, mine = shop.folder.parent, ("--gateway", "shop")
    folder.joinpath("todos.json").write_text(json.dumps(TODOS))
    shop.ask("schema", "apply", "todos.json", *mine)

    def push(number):
        """Push a row and wait until the checkpoint has it; return the seconds."""
        begun = time.monotonic()
        folder.joinpath("row.jsonl").write_text(json.dumps({"id": f"t{number}", "title": "Oat milk", "n": number}))
        shop.ask("push", "row.jsonl", "--table", "todos", "--id", "id", "--client", "alice", *mine)

        def is_in_checkpoint():
            checkpoint = status()["checkpoint"]
            return checkpoint is not None and checkpoint["rows"] == number

        shop.wait(is_in_checkpoint, BOUND)
        return time.monotonic() - begun

    def status():
        return json.loads(shop.ask("status", "--json", *mine))

    first = push(1)  # Spark's first queries are slow
    shop.wait(lambda: all(each.held for each in muted), BOUND)
    seconds = [push(number) for number in (2, 3)]
    print(f"in the checkpoint after {first:.1f} s, then {seconds}")
    shop.wait(lambda: len({p["name"] for p in status()["pipeline"]["behind"] if p["part"] == "destination"}) == 4, 60)

    # The last two occupy their slots permanently, so that another run for one of them cannot start.
    dagster = DagsterClient(shop.report()["dagster"]["url"])
    runs = [dagster.materialise("destinations/hung3/hung3", "destinations", "test") for _ in range(5)]
    begun = time.monotonic()
    shop.wait(lambda: {each["runId"] for each in status()["pipeline"]["queued"]} & set(runs), 60)
    assert time.monotonic() - begun < 60
    assert "has not started" in shop.ask("status", *mine)
    push(4)
