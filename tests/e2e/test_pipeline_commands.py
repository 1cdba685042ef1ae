"""The commands that ask a whole pipeline: status, checkpoint and backfill, on a `lakesync up` that really runs."""

import json
import time

import pytest

from lakesync.wire.frames import read_checkpoint
from lakesync.wire.protobuf import decode_response

TODOS = {"table": "todos", "columns": [{"name": "title", "type": "string"}, {"name": "n", "type": "number"}]}
ROWS = 30


@pytest.mark.deep
@pytest.mark.timeout(900)
def test_status_checkpoint_and_backfill_see_what_was_pushed(up):
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
    up.wait(lambda: json.loads(up.ask("status", "--json", *shop))["cut"] is not None, 300)
    after = json.loads(up.ask("status", "--json", *shop))
    assert (after["unflushedDeltas"], after["oldestUnflushedSeconds"], after["unanswered"]) == (0, None, [])
    assert after["cut"]["rows"] == ROWS
    (todos,) = [each for each in after["tables"] if each["table"] == "todos"]
    assert todos["mergedMs"] == after["newestMs"]
    assert after["runs"][0]["jobName"]

    assert json.loads(up.ask("checkpoint", "show", "--json", *shop))["served"]
    told = json.loads(up.ask("checkpoint", "fetch", "frames.bin", "--client", "newcomer", "--json", *shop))
    with up.folder.parent.joinpath("frames.bin").open("rb") as file:
        deltas = [delta for frame in read_checkpoint(file) for delta in decode_response(frame).deltas]
    assert sorted(delta.row_id for delta in deltas) == sorted(f"t{number}" for number in range(ROWS))
    assert told["deltas"] == len(deltas)

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
