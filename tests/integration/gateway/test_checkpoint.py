"""Checkpoints (K1, K2, K3) as the gateway serves them, over frames made by hand."""

from __future__ import annotations

import io
import re
import socket
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import urlsplit

import msgspec
import pytest
import requests

from lakesync.model.errors import IntegrityError
from lakesync.model.types import RowDelta, SyncResponse
from lakesync.staging.records import Checkpoint, CheckpointTable
from lakesync.wire import json as wire_json
from lakesync.wire import protobuf
from lakesync.wire.frames import encode_checkpoint_frame, read_checkpoint
from tests.integration.gateway_support import DEADLINE, Client, Served, delta, until

MINE = {
    "version": 1,
    "buckets": [
        {"name": "mine", "tables": ["todos"], "filters": [{"column": "owner", "op": "eq", "value": "jwt:sub"}]}
    ],
}


def rows(*deltas: dict) -> tuple[RowDelta, ...]:
    return tuple(wire_json.decode_deltas(b"[" + b",".join(map(_encoded, deltas)) + b"]"))


def _encoded(one: dict) -> bytes:
    return wire_json.encode_json(one)


def publish(
    served: Served, client: Client, folder: Path, frames: Sequence[Sequence[RowDelta]], *, epoch: int | None = None
) -> Checkpoint:
    """Publish a checkpoint at the newest arrival, with each of `frames` as one frame in one file."""
    store = served.engine.store
    (head,) = [shard for shard in store.backlog() if shard.gateway == client.gateway]
    file = folder / "todos with a space.frames"
    file.write_bytes(
        b"".join(
            encode_checkpoint_frame(protobuf.encode_response(SyncResponse(tuple(frame), head.last_arrival)))
            for frame in frames
        )
    )
    table = CheckpointTable("todos", 1, sum(map(len, frames)), (file.as_uri(),), file.stat().st_size)
    version = store.gateway_config(client.gateway).rules_version
    checkpoint = Checkpoint(
        client.gateway, head.epoch if epoch is None else epoch, head.last_arrival, version, (table,), 0
    )
    store.publish_checkpoint(checkpoint)
    return checkpoint


def received(answer) -> list[list[RowDelta]]:
    return [list(protobuf.decode_response(message).deltas) for message in read_checkpoint(io.BytesIO(answer.content))]


@pytest.mark.parametrize("prefix", ["", "/v1"])
def test_a_new_client_gets_the_frames_and_then_pulls_from_their_cursor(served, tmp_path, prefix):
    alice = served.client("alice")
    first, second = delta("t1", {"n": 1}, client="alice"), delta("t2", {"n": 2}, client="alice")
    alice.push(first, second)
    checkpoint = publish(served, alice, tmp_path, [rows(first), rows(second)])
    alice.push(delta("t3", {"n": 3}, client="alice"))
    bob = served.client("bob", alice.gateway)
    answer = bob.call("GET", prefix + "/sync/{gw}/checkpoint")
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "application/x-lakesync-checkpoint-stream"
    assert answer.headers["x-checkpoint-hlc"] == str(checkpoint.arrival)
    assert received(answer) == [list(rows(first)), list(rows(second))]
    metrics = requests.get(f"{served.url}/metrics", timeout=DEADLINE).text
    assert re.search(r"^lakesync_checkpoints_total [1-9]", metrics, re.MULTILINE)
    (served_bytes,) = re.findall(r"^lakesync_checkpoint_bytes_total (.+)$", metrics, re.MULTILINE)
    assert float(served_bytes) >= len(answer.content)
    rest = bob.pull(answer.headers["x-checkpoint-hlc"]).json()
    assert [(each["rowId"], each["op"]) for each in rest["deltas"]] == [("t3", "INSERT")]


def test_only_rows_that_the_rules_show_are_served(served, tmp_path):
    alice = served.client("alice")
    alice.admin().call("POST", "/admin/sync-rules/{gw}", json=MINE)
    named = delta("t1", {"owner": "carol"}, client="alice", hlc=1 << 40)
    given = delta("t1", {"owner": "bob"}, before={"owner": "carol"}, client="alice", hlc=2 << 40)
    titled = delta("t1", {"title": "x"}, before={"title": "y"}, client="alice", hlc=3 << 40)
    others = delta("t2", {"owner": "carol"}, client="alice")
    alice.push(named, given, titled, others)
    other_file_only = [delta("t9", {"owner": "carol"}, client="alice")]
    merged = rows({**given, "op": "INSERT"}, titled)
    publish(served, alice, tmp_path, [[*merged, *rows(others)], rows(*other_file_only)])
    answer = served.client("bob", alice.gateway).call("GET", "/sync/{gw}/checkpoint")
    assert received(answer) == [list(merged)]


def test_a_gateway_without_a_checkpoint_answers_404(served):
    client = served.client()
    client.push(delta("t1", {"n": 1}))
    answer = served.client("bob", client.gateway).call("GET", "/sync/{gw}/checkpoint")
    assert answer.status_code == 404
    assert answer.json()["code"] == "NOT_FOUND"


def test_a_client_that_has_pulled_gets_no_checkpoint(served, tmp_path):
    alice = served.client("alice")
    made = delta("t1", {"n": 1}, client="alice")
    alice.push(made)
    publish(served, alice, tmp_path, [rows(made)])
    assert alice.call("GET", "/sync/{gw}/checkpoint").status_code == 404
    bob = served.client("bob", alice.gateway)
    assert bob.call("GET", "/sync/{gw}/checkpoint").status_code == 200
    assert bob.call("GET", "/sync/{gw}/checkpoint").status_code == 404


def test_no_checkpoint_is_served_while_the_rules_are_newer(served, tmp_path):
    alice = served.client("alice")
    made = delta("t1", {"owner": "bob"}, client="alice")
    alice.push(made)
    publish(served, alice, tmp_path, [rows(made)])
    alice.admin().call("POST", "/admin/sync-rules/{gw}", json=MINE)
    assert served.client("bob", alice.gateway).call("GET", "/sync/{gw}/checkpoint").status_code == 404


def test_no_checkpoint_is_served_if_the_rules_change_before_its_first_frame(served, tmp_path, monkeypatch):
    alice = served.client("alice")
    made = delta("t1", {"owner": "bob"}, client="alice")
    alice.push(made)
    publish(served, alice, tmp_path, [rows(made)])
    gateway = served.engine.gateway(alice.gateway)
    submit_checkpoint = gateway.submit_checkpoint

    def changing_the_rules(*caller):
        submitted = submit_checkpoint(*caller)
        submitted.result()
        assert alice.admin().call("POST", "/admin/sync-rules/{gw}", json=MINE).status_code == 200
        return submitted

    monkeypatch.setattr(gateway, "submit_checkpoint", changing_the_rules)
    assert served.client("bob", alice.gateway).call("GET", "/sync/{gw}/checkpoint").status_code == 404


def test_no_checkpoint_of_another_epoch_is_served(served, tmp_path):
    alice = served.client("alice")
    made = delta("t1", {"n": 1}, client="alice")
    alice.push(made)
    with pytest.raises(IntegrityError):
        publish(served, alice, tmp_path, [rows(made)], epoch=12345)
    assert served.client("bob", alice.gateway).call("GET", "/sync/{gw}/checkpoint").status_code == 404


def test_a_checkpoint_whose_frames_are_missing_answers_404(served, tmp_path):
    alice = served.client("alice")
    made = delta("t1", {"n": 1}, client="alice")
    alice.push(made)
    checkpoint = publish(served, alice, tmp_path, [rows(made)])
    Path(tmp_path / "todos with a space.frames").unlink()
    assert checkpoint.tables[0].frames[0].startswith("file:///")
    bob = served.client("bob", alice.gateway)
    assert bob.call("GET", "/sync/{gw}/checkpoint").status_code == 404
    assert {each["rowId"] for each in bob.pull().json()["deltas"]} == {"t1"}


def test_a_damaged_file_ends_the_response_with_an_error(served, tmp_path):
    alice = served.client("alice")
    made = delta("t1", {"n": 1}, client="alice")
    alice.push(made)
    publish(served, alice, tmp_path, [rows(made), rows(made)])
    file = tmp_path / "todos with a space.frames"
    file.write_bytes(file.read_bytes()[:-3])
    with pytest.raises(OSError, match=r"(?i)chunk|ended|broken|incomplete"):
        served.client("bob", alice.gateway).call("GET", "/sync/{gw}/checkpoint")


def test_serving_a_checkpoint_takes_the_memory_of_one_frame(spawn, tmp_path):
    """K2: twenty times as many frames need no more memory."""
    server = spawn()
    alice = server.client("alice")
    team = {"column": "owner", "op": "eq", "value": "jwt:team"}
    rules = {"version": 1, "buckets": [{"name": "ours", "tables": [], "filters": [team]}]}
    assert alice.admin().call("POST", "/admin/sync-rules/{gw}", json=rules).status_code == 200
    made = delta("t1", {"owner": "red", "text": "x" * 50_000}, client="alice")
    frame = encode_checkpoint_frame(protobuf.encode_response(SyncResponse(rows(made) * 60, 1)))

    def peak_after_serving(client: str, frames: int) -> int:
        alice.push(delta(client, {"owner": "red"}, client="alice"))
        (head,) = server.internal("backlog")
        file = tmp_path / f"{client}.frames"
        with file.open("wb") as stream:
            stream.writelines([frame] * frames)
        table = CheckpointTable("todos", 1, 60 * frames, (file.as_uri(),), file.stat().st_size)
        checkpoint = Checkpoint("gw", head["epoch"], head["last_arrival"], 1, (table,), 0)
        assert server.internal("publish_checkpoint", checkpoint=msgspec.to_builtins(checkpoint)) is True
        reader = server.client(client, team="red")
        answer = reader.call("GET", "/sync/{gw}/checkpoint", headers={"Accept-Encoding": "identity"})
        assert answer.content == frame * frames
        status = Path(f"/proc/{server.process.pid}/status").read_text()
        found = re.search(r"VmHWM:\s+(\d+) kB", status)
        assert found is not None
        return int(found[1]) * 1024

    small = peak_after_serving("bob", 2)
    large = peak_after_serving("carol", 40)
    assert large - small < 10 * len(frame)


def test_a_client_that_stops_reading_is_disconnected(spawn, tmp_path):
    """The time limit applies to each part: it disconnects a client that reads nothing, not one that reads slowly."""
    server = spawn(LAKESYNC_LIMITS_REQUEST_TIMEOUT_SECONDS="1")
    alice = server.client("alice")
    alice.push(delta("t1", {"n": 1}, client="alice"))
    made = delta("t1", {"text": "x" * 1_000_000}, client="alice")
    frame = encode_checkpoint_frame(protobuf.encode_response(SyncResponse(rows(made), 1)))
    (head,) = server.internal("backlog")
    file = tmp_path / "long.frames"
    file.write_bytes(frame * 30)
    table = CheckpointTable("todos", 1, 30, (file.as_uri(),), file.stat().st_size)
    checkpoint = Checkpoint("gw", head["epoch"], head["last_arrival"], 0, (table,), 0)
    assert server.internal("publish_checkpoint", checkpoint=msgspec.to_builtins(checkpoint)) is True
    place = urlsplit(server.url)
    with socket.create_connection((place.hostname, place.port), DEADLINE) as connection:
        token = server.client("bob").token
        asked = f"GET /sync/gw/checkpoint HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\n\r\n"
        connection.sendall(asked.encode())
        assert connection.recv(100).startswith(b"HTTP/1.1 200")
        until(lambda: any(line["event"] == "answer cut short" for line in server.lines()), "the end of the answer")
        assert sum(map(len, iter(lambda: connection.recv(1 << 20), b""))) < 30 * len(frame)
    assert alice.pull().status_code == 200
