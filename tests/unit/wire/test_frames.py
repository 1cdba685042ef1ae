"""Encoding and decoding, byte for byte, over the shared vectors."""

import io
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from lakesync.model.errors import ValidationError
from lakesync.model.types import ActionPush, ActionResponse, SyncResponse
from lakesync.wire import actions, frames, json, protobuf
from lakesync.wire import lakesync_pb2 as pb
from lakesync.wire.delta_fields import split_deltas
from lakesync.wire.malformed import MalformedDeltasError

VECTORS = msgspec.json.decode((Path(__file__).parents[2] / "vectors/frames.json").read_bytes(), type=dict[str, Raw])


def compact(raw):
    """A vector's value without the file's indentation; numbers keep their text."""
    return msgspec.json.format(bytes(raw), indent=-1)


def case(name):
    found = msgspec.json.decode(VECTORS[name], type=dict[str, Raw])
    return compact(found["value"]), bytes.fromhex(msgspec.json.decode(found["hex"]))


@pytest.mark.parametrize("place", range(len(msgspec.json.decode(VECTORS["row_delta"]))))
def test_deltas_agree_with_the_vectors(place):
    found = msgspec.json.decode(VECTORS["row_delta"], type=list[dict[str, Raw]])[place]
    text, data = compact(found["value"]), bytes.fromhex(msgspec.json.decode(found["hex"]))
    (delta,) = json.decode_deltas(b"[" + text + b"]")
    (encoded,) = split_deltas(protobuf.encode_response(SyncResponse((delta,), 0)))
    assert encoded == data
    assert protobuf.decode_deltas([data]) == (delta,)
    assert json.encode_delta(delta) == text


def test_a_push_agrees_with_the_vectors():
    text, data = case("sync_push")
    push = json.decode_push(text)
    assert protobuf.encode_push(push) == data
    assert protobuf.decode_push(data) == push
    assert json.encode_push(push) == text


def test_exactly_the_invalid_deltas_are_listed():
    message = pb.SyncPush(client_id="c")
    for name, op, value in (("op", 0, b"1"), ("good", 1, rb'"\ud83d"'), ("value", 2, b"{")):
        column = pb.ColumnDelta(column="a", value=value)
        message.deltas.append(pb.RowDelta(op=op, table="t", row_id="r", columns=[column], delta_id=name))
    with pytest.raises(MalformedDeltasError) as raised:
        protobuf.decode_push(message.SerializeToString())
    assert [rejected.delta_id for rejected in raised.value.rejected] == ["op", "value"]
    assert raised.value.rejected[1].message.startswith("deltas[2]")
    assert [delta.delta_id for delta in raised.value.others.deltas] == ["good"]


def test_a_pull_agrees_with_the_vectors():
    text, data = case("sync_pull")
    pull = json.decode_pull(text)
    assert protobuf.encode_pull(pull) == data
    assert protobuf.decode_pull(data) == pull
    assert json.encode_pull(pull) == text


def test_a_response_agrees_with_the_vectors():
    text, data = case("sync_response")
    response = json.decode_response(text)
    assert protobuf.encode_response(response) == data
    assert protobuf.decode_response(data) == response
    assert json.encode_response(response) == text


def test_a_broadcast_agrees_with_the_vectors():
    text, data = case("broadcast_frame")
    response = json.decode_response(text)
    assert frames.encode_frame(frames.FrameTag.BROADCAST, protobuf.encode_response(response)) == data
    tag, message = frames.decode_frame(data)
    assert (tag, protobuf.decode_response(message)) == (frames.FrameTag.BROADCAST, response)


def test_an_action_push_agrees_with_the_vectors():
    text, data = case("action_push")
    push = actions.decode_push_json(text)
    assert isinstance(push, ActionPush)
    assert actions.encode_push(push) == data
    assert actions.decode_push(data) == push


@pytest.mark.parametrize("odd", ["1e3", "12.0", "-5"])
def test_the_hlc_of_an_action_must_be_a_decimal_text(odd):
    text, _ = case("action_push")
    stamp = b'"%d"' % actions.decode_push_json(text).actions[0].hlc
    with pytest.raises(ValidationError, match=f"actions.0.: hlc is '{odd}'"):
        actions.decode_push_json(text.replace(stamp, f'"{odd}"'.encode()))


def test_an_action_response_agrees_with_the_vectors():
    text, data = case("action_response")
    response = actions.decode_response(data)
    assert isinstance(response, ActionResponse)
    assert actions.encode_response(response) == data
    assert json.encode_json(response) == text


@pytest.mark.parametrize("frame", [b"", b"\x00", b"\x04abc", b"\xff"])
def test_a_malformed_frame_is_rejected(frame):
    with pytest.raises(ValidationError):
        frames.decode_frame(frame)


@given(st.lists(st.binary(max_size=40), max_size=5))
def test_a_checkpoint_stream_reads_back(messages):
    stream = b"".join(map(frames.encode_checkpoint_frame, messages))
    assert list(frames.read_checkpoint(io.BytesIO(stream))) == messages


@given(st.lists(st.binary(max_size=20), min_size=1, max_size=3), st.data())
def test_a_truncated_checkpoint_is_rejected_unless_cut_between_frames(messages, data):
    stream = b"".join(map(frames.encode_checkpoint_frame, messages))
    end = data.draw(st.integers(1, len(stream)))
    boundaries = {sum(4 + len(message) for message in messages[:count]) for count in range(len(messages) + 1)}
    if end in boundaries:
        assert list(frames.read_checkpoint(io.BytesIO(stream[:end]))) is not None
    else:
        with pytest.raises(ValidationError, match="fetch it again"):
            list(frames.read_checkpoint(io.BytesIO(stream[:end])))


def test_a_frame_above_the_bound_is_neither_written_nor_read():
    with pytest.raises(ValueError, match="above"):
        frames.encode_checkpoint_frame(b"x" * (frames.MAX_FRAME_BYTES + 1))
    with pytest.raises(ValidationError, match="claims"):
        list(frames.read_checkpoint(io.BytesIO(b"\xff\xff\xff\xff")))
