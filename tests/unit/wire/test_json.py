import json as stdlib
import re

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakesync.model.errors import ValidationError
from lakesync.model.types import ColumnValue, PushResult, RowDelta, SyncPull, SyncResponse
from lakesync.wire import json
from lakesync.wire.malformed import MalformedDeltasError

DELTA = {
    "op": "UPDATE",
    "table": "todos",
    "rowId": "r",
    "clientId": "c",
    "columns": [{"column": "a", "value": 1}],
    "hlc": "115579079884800003",
    "deltaId": "i",
}


def push(**changes):
    return stdlib.dumps({"clientId": "c", "deltas": [{**DELTA, **changes}], "lastSeenHlc": "0"}).encode()


@pytest.mark.parametrize("hlc", ["115579079884800003", 115579079884800003])
def test_an_hlc_is_a_decimal_string_or_a_bare_integer(hlc):
    assert json.decode_push(push(hlc=hlc)).deltas[0].hlc == 115579079884800003


@given(st.text(st.characters()))
def test_texts_of_javascript_are_decoded_with_replacement_characters(text):
    """`json.dumps` encodes half of a surrogate pair like `JSON.stringify`."""
    decoded = json.decode_push(push(columns=[{"column": "a", "value": {text: [text]}}]))
    expected = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    assert msgspec.json.decode(decoded.deltas[0].columns[0].value) == {expected: [expected]}


ODD = [
    "1e3",
    "1E3",
    "12.0",
    "-0",
    "-5",
    " 12",
    "1_000",
    "0x10",
    "\uff11\uff12",
    "007",
    "",
    "115579079884800000.0",
    "1.125e17",
]


@pytest.mark.parametrize("hlc", ODD)
def test_an_hlc_that_is_not_a_decimal_text_is_rejected(hlc):
    deltas = [
        {**DELTA, "deltaId": "bad", "hlc": hlc},
        {**DELTA, "columns": [{"column": "hlc", "value": {"hlc": "1e3"}}]},
    ]
    for spell in (stdlib.dumps, lambda body: stdlib.dumps(body, separators=(",", ":"))):
        with pytest.raises(ValidationError) as raised:
            json.decode_push(spell({"clientId": "c", "deltas": deltas}).encode())
        (rejected,) = raised.value.rejected
        assert rejected.delta_id == "bad"
        assert repr(hlc) in rejected.message
        with pytest.raises(ValidationError, match=re.escape(f"lastSeenHlc is {hlc!r}")):
            json.decode_push(spell({"clientId": "c", "deltas": deltas[1:], "lastSeenHlc": hlc}).encode())
        assert len(json.decode_push(spell({"clientId": "c", "deltas": deltas[1:]}).encode()).deltas) == 1


def test_values_keep_their_json_text():
    body = push().replace(b'"value": 1', b'"value": {"b":1.50,  "a":"\\u00e9"}')
    (delta,) = json.decode_push(body).deltas
    assert bytes(delta.columns[0].value) == b'{"b":1.50,  "a":"\\u00e9"}'
    assert b'{"b":1.50,  "a":"\\u00e9"}' in json.encode_delta(delta)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"op": "MERGE"}, "MERGE"),
        ({"hlc": "soon"}, "hlc"),
        ({"hlc": None}, "hlc"),
        ({"hlc": True}, "hlc"),
        ({"rowId": 5}, "rowId"),
        ({"columns": None}, "columns"),
        ({"columns": [{"column": "a"}]}, "value"),
    ],
)
def test_a_malformed_delta_is_rejected_with_the_reason(change, message):
    with pytest.raises(ValidationError, match=message) as raised:
        json.decode_push(push(**change))
    (rejected,) = raised.value.rejected
    assert rejected.delta_id == "i"
    assert rejected.message.startswith("deltas[0]")


def test_exactly_the_invalid_deltas_are_listed():
    deltas = [
        {**DELTA, "deltaId": "bad-1", "op": "X"},
        {**DELTA, "deltaId": "good"},
        {**DELTA, "deltaId": "bad-2", "table": 1},
        {**DELTA, "deltaId": 7},
    ]
    with pytest.raises(MalformedDeltasError) as raised:
        json.decode_push(stdlib.dumps({"clientId": "c", "deltas": deltas}).encode())
    assert [rejected.delta_id for rejected in raised.value.rejected] == ["bad-1", "bad-2", ""]
    assert [delta.delta_id for delta in raised.value.others.deltas] == ["good"]


@pytest.mark.parametrize("value", [b"1e400", b'"\xff"', b"[" * 101 + b"]" * 101, b"9" * 400])
def test_a_value_that_other_parsers_would_reject_is_rejected(value):
    body = push().replace(b'"value": 1', b'"value": ' + value)
    with pytest.raises(ValidationError, match="column 'a'") as raised:
        json.decode_push(body)
    assert raised.value.rejected[0].delta_id == "i"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"null",
        b"[]",
        b"{}",
        b'{"clientId":"c"}',
        b'{"clientId":5,"deltas":[]}',
        b'{"clientId":"\xff","deltas":[]}',
        b'{"clientId":"c","deltas":[],"lastSeenHlc":"-1"}',
        b'{"clientId":"c","deltas":[],"lastSeenHlc":9223372036854775808}',
        b'{"clientId":"c","deltas":{}}',
        b'{"clientId":"c","deltas":[5]}',
        b"[" * 100_000,
        b'{"x":' * 100_000,
    ],
    ids=lambda body: repr(body[:40]),
)
def test_an_invalid_push_is_rejected(body):
    with pytest.raises(ValidationError):
        json.decode_push(body)


@pytest.mark.parametrize("cursor", [-1, 1 << 63])
def test_an_invalid_cursor_is_rejected_beside_malformed_deltas(cursor):
    with pytest.raises(ValidationError, match="lastSeenHlc") as raised:
        json.decode_push(b'{"clientId":"c","deltas":[5],"lastSeenHlc":%d}' % cursor)
    assert not raised.value.rejected


@pytest.mark.parametrize(
    ("body", "pull"),
    [
        (b'{"clientId":"c","sinceHlc":"7","maxDeltas":5}', SyncPull("c", 7, 5)),
        (b'{"clientId":"c","since":7,"limit":5,"source":"s"}', SyncPull("c", 7, 5, "s")),
        (b'{"clientId":"c"}', SyncPull("c", 0, 100)),
        (b'{"clientId":"c","ownHlc":"9"}', SyncPull("c", 0, 100, own_hlc=9)),
        (b'{"clientId":"c","ownHlc":0}', SyncPull("c", 0, 100, own_hlc=0)),
    ],
)
def test_a_pull_may_use_either_field_names(body, pull):
    assert json.decode_pull(body) == pull
    assert json.decode_pull(json.encode_pull(pull)) == pull
    query = {name: str(value) for name, value in stdlib.loads(body).items()}
    assert json.parse_pull(query) == pull


@pytest.mark.parametrize(
    ("name", "value"),
    [("since", "x"), ("sinceHlc", "x"), ("since", "-1"), ("limit", "0"), ("limit", "1.5"), ("maxDeltas", "-1")],
)
def test_an_invalid_pull_is_rejected_by_the_name_of_the_field(name, value):
    with pytest.raises(ValidationError, match=rf"^{name} is '?{value}'?: "):
        json.parse_pull({"clientId": "c", name: value})
    with pytest.raises(ValidationError, match=name):
        json.decode_pull(stdlib.dumps({"clientId": "c", name: value}).encode())


@pytest.mark.parametrize("name", ["maxDeltas", "limit"])
@pytest.mark.parametrize("value", ["", "abc", " 5", "+5", "5.0", "1e2", "0x5", "1_0", "٣", "inf", "9" * 5000])
def test_a_limit_in_a_query_is_a_plain_whole_number(name, value):
    with pytest.raises(ValidationError, match=rf"^{name} is {re.escape(repr(value[:40]))}: send a whole number"):
        json.parse_pull({"clientId": "c", name: value})


def test_a_pull_without_a_client_id_is_rejected():
    with pytest.raises(ValidationError, match="clientId"):
        json.parse_pull({})
    with pytest.raises(ValidationError, match="clientId"):
        json.decode_pull(b"{}")


def test_an_integer_may_be_written_with_a_zero_fraction():
    assert json.decode_pull(b'{"clientId":"c","since":7.0,"limit":5e0}') == SyncPull("c", 7, 5)


@pytest.mark.parametrize("name", ["sinceHlc", "since", "maxDeltas", "limit"])
@pytest.mark.parametrize("value", [None, "null", "", "1e3", "1.0", " 5", "9" * 5000, 1.5, True, []])
def test_a_posted_pull_with_a_malformed_number_is_rejected(name, value):
    with pytest.raises(ValidationError):
        json.decode_pull(stdlib.dumps({"clientId": "c", name: value}).encode())


@pytest.mark.parametrize("name", ["sinceHlc", "since", "ownHlc"])
def test_a_posted_pull_with_an_hlc_beyond_doubles_is_rejected(name):
    with pytest.raises(ValidationError, match="outside"):
        json.decode_pull(b'{"clientId":"c","%b":%b}' % (name.encode(), b"9" * 400))


def test_a_limit_beyond_doubles_is_decoded_as_it_is():  # the gateway rejects it by its own limit
    limit = "9" * 400
    assert json.decode_pull(b'{"clientId":"c","limit":%b}' % limit.encode()).max_deltas == int(limit)
    assert json.parse_pull({"clientId": "c", "limit": limit}).max_deltas == int(limit)


def test_answers_encode_every_hlc_as_a_string():
    delta = RowDelta("INSERT", "t", "r", "c", (ColumnValue.of("hlc", 5),), 2**60, "i")
    page = stdlib.loads(json.encode_response(SyncResponse((delta,), 2**61, True)))
    assert (page["serverHlc"], page["hasMore"], page["deltas"][0]["hlc"]) == (str(2**61), True, str(2**60))
    assert page["deltas"][0]["columns"] == [{"column": "hlc", "value": 5}]
    answer = stdlib.loads(json.encode_push_result(PushResult(2**61, 3)))
    assert answer == {"serverHlc": str(2**61), "accepted": 3, "deltas": []}
    assert json.decode_push_result(json.encode_push_result(PushResult(9, 1, (delta,)))) == PushResult(9, 1, (delta,))
    other = json.encode_json({"hlc": 1, "latestHlc": 2, "hlcs": 3, "of": [{"toHlc": 4, "x": None}]})
    assert other == b'{"hlc":"1","latestHlc":"2","hlcs":3,"of":[{"toHlc":"4","x":null}]}'
