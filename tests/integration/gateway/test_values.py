"""Ids, names, numbers and clocks at the limits of what is allowed: accepted and returned unchanged."""

from __future__ import annotations

import json

import msgspec
import pytest
import requests

from gateway.openapi_schemas import JSON, PROTOBUF
from lakesync.model.types import ColumnValue, SyncPull, SyncPush
from lakesync.wire import json as wire_json
from lakesync.wire import protobuf
from tests.integration.gateway_support import DEADLINE, delta, wall_ms

ROWS = [
    "\U0001f600" * 512,
    "x" * 512,
    " ",
    "../..",
    "%2F",
    "\u00e9",
    "e\u0301",
    "\u202e",
    "\uffff",
    "\U0010ffff",
    "'; DROP TABLE log;--",
    "\n",
    "\x7f",
    "\ufeff",
    "@client-1",
    "*",
]
COLUMNS = ["_row", "_cells", "_gone", "rowid", "oid", "gateway", "hlc", "deltaId", "constructor", "__proto__", "SELECT"]
NUMBERS = [
    "9007199254740993",
    "18446744073709551616",
    "123456789012345678901234567890",
    "-0",
    "-0.0",
    "1E5",
    "1e-400",
    "5e-324",
    "1.7976931348623157e308",
]


def pulled(client):
    """The deltas that a new client is sent, as they are encoded."""
    answer = client.pull(limit=10_000)
    assert not answer.json()["hasMore"]
    return json.loads(answer.text, parse_float=str, parse_int=str)["deltas"]


def test_values_at_the_limits_are_returned_unchanged(served):
    client = served.client()
    sent = [delta(row, {"n": 1}, hlc=number) for number, row in enumerate(ROWS)]
    sent += [delta("r", {"n": 1}, table=name, hlc=100) for name in COLUMNS]
    sent.append(delta("columns", dict.fromkeys(COLUMNS, 1), hlc=101))
    body = {"clientId": client.client_id, "deltas": sent, "lastSeenHlc": "0"}
    numbers = delta("numbers", {f"n{place}": f"@{place}@" for place in range(len(NUMBERS))}, hlc=102)
    text = json.dumps({**body, "deltas": [*sent, numbers]})
    for place, number in enumerate(NUMBERS):
        text = text.replace(f'"@{place}@"', number)
    answer = client.call("POST", "/sync/{gw}/push", data=text, headers={"Content-Type": "application/json"})
    assert answer.json()["accepted"] == len(sent) + 1
    expected = json.loads(text, parse_float=str, parse_int=str)["deltas"]
    assert pulled(served.client("bob", client.gateway)) == expected
    store = served.engine.store
    store._read(store._open.behind.write)  # from now on the rows are read from the file
    assert pulled(served.client("cat", client.gateway)) == expected
    gateway = served.engine.gateway(client.gateway)
    page = gateway.handle_pull(SyncPull("dan", 0, 10_000))
    assert [(each.table, each.row_id) for each in page.deltas] == [(each["table"], each["rowId"]) for each in expected]


@pytest.mark.parametrize("row", ["", "x" * 513, "\x00", "a\x00b", "\ud800", "a\udfff"], ids=ascii)
def test_an_invalid_id_is_rejected_with_the_fields_name(served, row):
    client = served.client()
    made = {**delta("r", {"n": 1}), "rowId": row}
    body = json.dumps({"clientId": client.client_id, "deltas": [made], "lastSeenHlc": "0"})
    answer = client.call("POST", "/sync/{gw}/push", data=body, headers={"Content-Type": "application/json"})
    assert (answer.status_code, answer.json()["code"]) == (400, "VALIDATION_ERROR")
    (rejected,) = answer.json()["rejected"]
    assert (rejected["deltaId"], rejected["message"].split()[0]) == (made["deltaId"], "rowId")


CUT = r'{"a \ud83d": ["\ud83d\ude00", "\ude00\ud83d", "\\ud83d", "\uD83D\n", 1.0]}'
"""JSON with texts that JavaScript has cut within a character, a whole surrogate pair and an escaped backslash."""
MENDED = {"a \ufffd": ["\U0001f600", "\ufffd\ufffd", "\\ud83d", "\ufffd\n", 1.0]}


def cut_push(client, in_protobuf):
    """A push of two rows, the second of which has `CUT` as a value."""
    whole, cut = delta("whole", {"n": 1}), delta("cut", {"title": None})
    if not in_protobuf:
        text = json.dumps({"clientId": client.client_id, "deltas": [whole, cut], "lastSeenHlc": "0"})
        return text.replace('"value": null', '"value": ' + CUT).encode()
    decoded = list(wire_json.decode_deltas(json.dumps([whole, cut]).encode()))
    decoded[1] = msgspec.structs.replace(decoded[1], columns=(ColumnValue("title", msgspec.Raw(CUT.encode())),))
    return protobuf.encode_push(SyncPush(client.client_id, tuple(decoded), 0))


@pytest.mark.parametrize("media_type", [JSON, PROTOBUF])
def test_half_of_a_surrogate_pair_in_a_value_becomes_the_replacement_character(served, media_type):
    """JavaScript sends such values, and its client would drop all edits of a rejected push after ten attempts."""
    client = served.client()
    body = cut_push(client, media_type == PROTOBUF)
    answer = client.call("POST", "/sync/{gw}/push", data=body, headers={"Content-Type": media_type})
    assert answer.status_code == 200, answer.text
    found = {each["rowId"]: each["columns"] for each in served.client("bob", client.gateway).pull().json()["deltas"]}
    assert found == {"whole": [{"column": "n", "value": 1}], "cut": [{"column": "title", "value": MENDED}]}


@pytest.mark.parametrize("field", ["rowId", "table", "deltaId", "column"])
def test_half_of_a_surrogate_pair_in_an_id_or_name_is_rejected_by_delta(served, field):
    client = served.client()
    whole, cut = delta("whole", {"n": 1}), delta("cut", {"n": 1})
    (cut["columns"][0] if field == "column" else cut)[field] = "a\ud83d"
    body = json.dumps({"clientId": client.client_id, "deltas": [whole, cut], "lastSeenHlc": "0"})
    answer = client.call("POST", "/sync/{gw}/push", data=body, headers={"Content-Type": JSON})
    assert (answer.status_code, answer.json()["code"]) == (400, "VALIDATION_ERROR")
    (rejected,) = answer.json()["rejected"]
    assert rejected["message"].startswith(field)
    assert field == "deltaId" or rejected["deltaId"] == cut["deltaId"]


@pytest.mark.parametrize(
    ("hlc", "status"),
    [(0, 200), (1, 200), (2**63 - 1, 409), (2**63, 400), (2**64 - 1, 400), (2**64, 400), (-1, 400)],
)
def test_hlcs_at_the_ends_of_their_range_are_accepted_or_rejected(served, hlc, status):
    client = served.client()
    assert client.push({**delta("r", {"n": 1}), "hlc": str(hlc)}).status_code == status
    assert client.pull(str(hlc)).status_code == (200 if status in (200, 409) else 400)
    body = {"clientId": client.client_id, "deltas": [delta("q", {"n": 1})], "lastSeenHlc": str(hlc)}
    headers = {"Authorization": f"Bearer {client.token}", "X-LakeSync-Client": "test"}
    answer = requests.post(f"{client.url}/sync/{client.gateway}/push", json=body, headers=headers, timeout=DEADLINE)
    assert answer.status_code == (200 if status in (200, 409) else 400)


@pytest.mark.parametrize("cursor", [2**63 - 1, 2**63 - 200, 2**62])
def test_l11_a_client_with_a_cursor_at_the_end_of_all_cursors_gets_its_rows_page_by_page(served, cursor):
    client = served.client()
    client.push(*(delta(f"r{n}", {"n": n}) for n in range(5)))
    bob, rows, more = served.client("bob", client.gateway), set(), True
    while more:
        page = bob.pull(str(cursor), limit=2).json()
        rows |= {received["rowId"] for received in page["deltas"] if received["op"] == "INSERT"}
        cursor, more = int(page["serverHlc"]), page["hasMore"]
        assert cursor < 2**63
    assert rows == {f"r{n}" for n in range(5)}


def test_p3_a_repeated_id_with_other_content_changes_nothing(served):
    """Two contents in one push are rejected by id."""
    client = served.client()
    first = {**delta("r", {"n": 1}, hlc=wall_ms() << 16), "deltaId": "a" * 64}
    second = {**delta("q", {"n": 2}, hlc=int(first["hlc"])), "deltaId": "a" * 64}
    assert client.push(first).json()["accepted"] == 1
    for repeat in ([second], [second, second]):
        assert client.push(*repeat).json()["accepted"] == len(repeat)
    refused = client.push(second, first)
    assert (refused.status_code, refused.json()["code"]) == (400, "VALIDATION_ERROR")
    assert [each["deltaId"] for each in refused.json()["rejected"]] == ["a" * 64]
    (received,) = served.client("bob", client.gateway).pull().json()["deltas"]
    assert (received["rowId"], received["columns"]) == ("r", first["columns"])
