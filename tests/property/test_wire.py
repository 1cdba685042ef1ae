"""Every wire format round-trips, and rejects anything else with ValidationError only."""

import contextlib
import json as stdlib

import msgspec
from hypothesis import example, given
from hypothesis import strategies as st

from lakesync.model.delta import dedup_key, jcs_raw
from lakesync.model.errors import SchemaError, ValidationError
from lakesync.model.schema import parse_schema
from lakesync.model.types import SyncPull, SyncPush, SyncResponse
from lakesync.rules.model import parse_rules
from lakesync.staging.ledger import tally_of
from lakesync.testing import strategies
from lakesync.wire import actions, frames, json, log, protobuf

pushes = st.builds(SyncPush, strategies.ids, st.lists(strategies.deltas(), max_size=3).map(tuple), strategies.hlcs)
responses = st.builds(
    SyncResponse, st.lists(strategies.deltas(), max_size=3).map(tuple), strategies.hlcs, st.booleans()
)
pulls = st.builds(
    SyncPull,
    strategies.ids,
    strategies.hlcs,
    st.integers(1, 10_000),
    st.none() | strategies.texts.filter(bool),
    st.none() | strategies.hlcs,
)


@given(pushes)
def test_pushes_round_trip(push):
    assert json.decode_push(json.encode_push(push)) == push
    assert protobuf.decode_push(protobuf.encode_push(push)) == push
    assert log.decode_body(log.encode_body(push.deltas)) == list(push.deltas)
    assert log.unpack_ids(log.pack_ids(push.deltas)) == [
        (delta.hlc, dedup_key(delta.delta_id)) for delta in push.deltas
    ]


@given(pushes)
def test_packed_ids_of_earlier_versions_are_read(push):
    whole = log.pack_ids(push.deltas)
    count = len(push.deltas)
    old = whole[: 16 * count]
    assert log.unpack_ids(old) == [(delta.hlc, log.old_dedup_key(delta.delta_id)) for delta in push.deltas]
    assert tally_of(old) == tally_of(whole)


@given(responses)
def test_responses_round_trip(response):
    assert json.decode_response(json.encode_response(response)) == response
    assert protobuf.decode_response(protobuf.encode_response(response)) == response


@given(pulls)
def test_pulls_round_trip(pull):
    assert protobuf.decode_pull(protobuf.encode_pull(pull)) == pull
    if pull.source != "null":
        assert json.decode_pull(json.encode_pull(pull)) == pull


READERS = [
    json.decode_push,
    json.decode_pull,
    json.decode_response,
    json.decode_push_result,
    json.decode_deltas,
    protobuf.decode_push,
    protobuf.decode_pull,
    protobuf.decode_response,
    lambda data: protobuf.decode_deltas([data]),
    frames.decode_frame,
    actions.decode_push,
    actions.decode_push_json,
    actions.decode_response,
    log.decode_body,
    log.unpack_ids,
    jcs_raw,
]


def survive(data):
    for reader in READERS:
        with contextlib.suppress(ValidationError):
            reader(data)


@given(st.binary(max_size=200))
@example(bytes.fromhex("1209320120"))  # an action whose params are a space
def test_random_bytes_are_decoded_or_rejected(data):
    survive(data)


@given(strategies.values)
def test_any_json_is_decoded_or_rejected(value):
    survive(msgspec.json.encode(value))
    for parse in (parse_rules, parse_schema):
        with contextlib.suppress(ValidationError, SchemaError):
            parse(value)


@given(pushes, st.data())
def test_damaged_messages_are_decoded_or_rejected(push, data):
    for intact in (json.encode_push(push), protobuf.encode_push(push), log.encode_body(push.deltas)):
        damaged = bytearray(intact)
        for _ in range(data.draw(st.integers(1, 3))):
            place = data.draw(st.integers(0, len(damaged) - 1))
            damaged[place] = data.draw(st.integers(0, 255))
        survive(bytes(damaged))
        survive(intact[: data.draw(st.integers(0, len(intact)))])


@given(pushes, strategies.values, st.data())
def test_a_push_with_any_replaced_field_is_decoded_or_rejected(push, value, data):
    body = stdlib.loads(json.encode_push(push))
    target = data.draw(st.sampled_from([body, *body["deltas"], *(c for d in body["deltas"] for c in d["columns"])]))
    target[data.draw(st.sampled_from(sorted(target)))] = value
    survive(msgspec.json.encode(body))
