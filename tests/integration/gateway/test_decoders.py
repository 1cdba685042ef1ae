"""Malformed bytes: every decoder rejects them with a reason, in bounded memory, without an internal error."""

from __future__ import annotations

import gzip
import json
import zlib
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway.openapi_schemas import PROTOBUF
from lakesync.model.types import SyncPull
from lakesync.wire import json as wire_json
from lakesync.wire import protobuf
from tests.integration.gateway_support import delta

SETTINGS = settings(deadline=None, suppress_health_check=list(HealthCheck))
PUSH = json.dumps(
    {"clientId": "client-1", "deltas": [delta("t1", {"n": 1, "s": "é\n", "deep": {"a": [1]}})], "lastSeenHlc": "0"}
).encode()
PULL = json.dumps({"clientId": "client-1", "sinceHlc": "0", "maxDeltas": 10}).encode()
FRAMES = {
    "push": protobuf.encode_push(wire_json.decode_push(PUSH)),
    "pull": protobuf.encode_pull(SyncPull("client-1", 7, 10)),
}
TEXTS = {"push": PUSH, "pull": PULL}
FRAGMENTS = [
    b"\x00",
    b"\xff\xfe",
    b"\xc0\x80",
    b"\xed\xa0\x80",
    b'"\\ud800"',
    b'"\\udc00\\ud800"',
    b"1e999",
    b"-0",
    b"9" * 400,
    b"1" + b"0" * 5000 + b"." + b"0" * 5000,
    b"NaN",
    b'"hlc":1,"hlc":2,',
    b'"clientId":"other",',
    b"[" * 2000,
    b'{"a":' * 2000,
    b"]" * 50,
    b"\x0b" * 500,
    b"\x0a\xff\xff\xff\xff\x0f",
    b"\xf8\xff\xff\xff\xff\xff\xff\xff\xff\x01",
]
MUTATIONS = st.lists(
    st.tuples(
        st.sampled_from(["set", "insert", "delete", "repeat", "cut"]),
        st.floats(0, 1, exclude_max=True),
        st.sampled_from(FRAGMENTS) | st.binary(min_size=1, max_size=4),
    ),
    min_size=1,
    max_size=3,
)


def mutated(body: bytes, mutations: list[tuple[str, float, bytes]]) -> bytes:
    for kind, where, fragment in mutations:
        at = int(where * len(body))
        rest = {
            "set": fragment + body[at + len(fragment) :],
            "insert": fragment + body[at:],
            "delete": body[at + len(fragment) :],
            "repeat": body[max(0, at - 20) :],
            "cut": b"",
        }[kind]
        body = body[:at] + rest
    return body


def send(client, verb: str, body: bytes, **headers: str):
    return client.call("POST", "/sync/{gw}/" + verb, data=body, headers=headers)


@SETTINGS
@given(st.sampled_from(sorted(TEXTS)), MUTATIONS)
def test_damaged_json_is_answered_with_a_reason(served, verb, mutations):
    body = mutated(TEXTS[verb], mutations)
    answer = send(served.client(), verb, body, **{"Content-Type": "application/json"})
    assert answer.status_code in (200, 400, 403, 404, 409), (body, answer.text)


@SETTINGS
@given(st.sampled_from(sorted(FRAMES)), MUTATIONS)
def test_damaged_protobuf_is_answered_with_a_reason(served, verb, mutations):
    body = mutated(FRAMES[verb], mutations)
    answer = send(served.client(), verb, body, **{"Content-Type": PROTOBUF})
    assert answer.status_code in (200, 400, 403, 404, 409), (body, answer.text)


@SETTINGS
@given(st.sampled_from(sorted(TEXTS)), MUTATIONS)
def test_damaged_gzip_is_answered_with_a_reason(served, verb, mutations):
    body = mutated(gzip.compress(TEXTS[verb]), mutations)
    answer = send(served.client(), verb, body, **{"Content-Encoding": "gzip"})
    assert answer.status_code in (200, 400), (body, answer.text)


DEEP = 400_000
HOSTILE = {
    "lists": b"[" * DEEP + b"]" * DEEP,
    "objects": b'{"a":' * (DEEP // 4) + b"1" + b"}" * (DEEP // 4),
    "a deep value": PUSH.replace(b'{"a": [1]}', b"[" * DEEP + b"]" * DEEP),
    "a deep key beside": b'{"x":' + b"[" * DEEP + b"]" * DEEP + b"," + PULL[1:],
    "a long number": PUSH.replace(b"[1]", b"9" * 900_000),
    "a long fraction": PUSH.replace(b"[1]", b"0." + b"9" * 900_000),
    "a long hlc": PULL.replace(b'"0"', b'"' + b"9" * 900_000 + b'"'),
    "a long cursor": PULL.replace(b'"0"', b"9" * 900_000),
    "many keys": b"{" + b",".join(b'"k%d":0' % n for n in range(70_000)) + b"}",
    "one key many times": b"{" + b'"clientId":"client-1",' * 40_000 + PULL[1:],
    "lone surrogates": PUSH.replace(b'"t1"', b'"\\ud800\\ud800"'),
    "a byte order mark": b"\xef\xbb\xbf" + PUSH,
    "UTF-16": PUSH.decode().encode("utf-16"),
    "no UTF-8": PUSH.replace(b"t1", b"\xff\xfe"),
    "nothing": b"",
    "null": b"null",
}

READ = {
    ("/sync/{gw}/push", "a long fraction"),  # a number that a double can hold is kept unchanged
    ("/sync/{gw}/pull", "one key many times"),  # the last one counts, as is usual in JSON
    # a pull ignores unknown keys
    ("/sync/{gw}/pull", "a long number"),
    ("/sync/{gw}/pull", "a long fraction"),
    ("/sync/{gw}/pull", "no UTF-8"),
}
"""Unusual messages that are valid."""


@pytest.mark.parametrize("path", ["/sync/{gw}/push", "/sync/{gw}/pull", "/admin/schema/{gw}", "/admin/sync-rules/{gw}"])
@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_json_is_rejected_or_decoded(served, path, name):
    client = served.client()
    caller = client.admin() if path.startswith("/admin") else client
    answer = caller.call("POST", path, data=HOSTILE[name])
    allowed = (200,) if (path, name) in READ else (400, 403)
    assert answer.status_code in allowed, answer.text[:200]
    assert len(answer.content) < 4096


def nested(depth: int) -> bytes:
    """Nested protobuf messages, each as field 2 of SyncPush."""
    body = b""
    for _ in range(depth):
        size = len(body)
        length = b""
        while size > 0x7F:
            length, size = length + bytes([size & 0x7F | 0x80]), size >> 7
        body = b"\x12" + length + bytes([size]) + body
    return body


@pytest.mark.parametrize("depth", [50, 5000])
def test_protobuf_within_protobuf_is_rejected(served, depth):
    answer = send(served.client(), "push", nested(depth), **{"Content-Type": PROTOBUF})
    assert answer.status_code == 400, answer.text


def bomb(mebibytes: int) -> bytes:
    """Gzipped zeroes, made in pieces."""
    packer = zlib.compressobj(9, wbits=31)
    zeroes = bytes(1 << 20)
    return b"".join([*(packer.compress(zeroes) for _ in range(mebibytes)), packer.flush()])


def peak(pid: int) -> int:
    """The peak memory of a process, in bytes."""
    (line,) = [line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmHWM")]
    return int(line.split()[1]) * 1024


def test_a_compression_bomb_is_rejected_in_bounded_memory(spawn):
    server = spawn()
    client = server.client()
    assert client.push(delta("t1", {"n": 1})).status_code == 200
    before = peak(server.process.pid)
    packed = bomb(500)
    assert len(packed) < 1 << 20
    twice = gzip.compress(packed)
    for body in (packed, packed[:-9], packed + packed[:100], twice):
        answer = send(client, "push", body, **{"Content-Encoding": "gzip"})
        assert answer.status_code in (400, 413), answer.text
    for body in HOSTILE.values():
        send(client, "push", body)
    assert peak(server.process.pid) - before < 64 << 20
    assert client.pull().status_code == 200


@pytest.mark.parametrize("encoding", ["br", "deflate", "gzip, gzip", "x-gzip", "zstd", ""])
def test_another_content_encoding_is_rejected(served, encoding):
    answer = send(served.client(), "push", PUSH, **{"Content-Encoding": encoding})
    assert answer.status_code == 400
    assert "gzip" in answer.json()["error"]
