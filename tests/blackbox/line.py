"""A WebSocket and its frames, as the reference's client makes them: a tag, then a protobuf message.

It encodes and decodes the messages itself, without code of the project.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, NamedTuple

from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

from tests.blackbox.law import Delta

Page = dict[str, Any]

PUSH, PULL, BROADCAST = 1, 2, 3
_OPS = ("", "INSERT", "UPDATE", "DELETE")
_VARINT, _FIXED64, _BYTES = 0, 1, 2


class LineEndedError(Exception):
    """The connection has ended; the message says why."""


class Frame(NamedTuple):
    """A frame from the server."""

    broadcast: bool
    page: Page


class Line:
    """One connection of a client."""

    def __init__(
        self, port: int, gateway: str, token: str, deadline: float, headers: dict[str, str], process: int = 0
    ) -> None:
        self._deadline = deadline
        self.process = process
        """The number of the server's process."""
        self.pulled = False
        """Whether a pull was answered on it."""
        self.more = False
        """Whether the last page had more after it."""
        self.missed = False
        """Whether a broadcast without a cursor was dropped."""
        self._came: Frame | None = None
        self._socket: ClientConnection = connect(
            f"ws://127.0.0.1:{port}/sync/{gateway}/ws",
            additional_headers={"Authorization": f"Bearer {token}", **headers},
            compression=None,
            proxy=None,
            ping_interval=None,
            open_timeout=deadline,
            close_timeout=0.1,
            max_size=None,
        )

    def ask(self, request: dict[str, Any]) -> None:
        """Send a push, where the request has deltas, or a pull."""
        message = _push(request) if "deltas" in request else _pull(request)
        with _ends():
            self._socket.send(message)

    def await_frame(self, seconds: float) -> None:
        """Wait until a frame arrives, which `next` returns later, or until the seconds have passed."""
        self._came = self._came or self._next(seconds)

    def next(self, seconds: float | None = None) -> Frame | None:
        """The next frame; None if none arrives within the seconds."""
        frame, self._came = self._came, None
        return frame or self._next(seconds)

    def _next(self, seconds: float | None) -> Frame | None:
        with _ends():
            try:
                frame = self._socket.recv(self._deadline if seconds is None else seconds)
            except TimeoutError:
                if seconds is None:
                    raise
                return None
        if not isinstance(frame, bytes) or len(frame) < 2:
            raise AssertionError(f"the reference's client ignores this frame: {frame!r}")
        broadcast = frame[0] == BROADCAST
        return Frame(broadcast, _response(frame[1:] if broadcast else frame))

    def cut(self) -> None:
        """Drop the connection without notifying the server."""
        self._socket.close_socket()


class _ends:  # noqa: N801
    """Converts the end of a connection into `LineEndedError`."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, ConnectionClosed | OSError) and not isinstance(error, TimeoutError):
            raise LineEndedError(str(error)) from error


# -- messages --------------------------------------------------------------------------------------------------------


def _push(request: dict[str, Any]) -> bytes:
    deltas = b"".join(_field(2, _delta(each)) for each in request["deltas"])
    seen = _fixed(3, int(request.get("lastSeenHlc", 0)))
    return bytes((PUSH,)) + _field(1, request["clientId"].encode()) + deltas + seen


def _pull(request: dict[str, Any]) -> bytes:
    message = _field(1, request["clientId"].encode()) + _fixed(2, int(request["sinceHlc"]))
    message += b"\x18" + _varint(request["maxDeltas"])
    if "ownHlc" in request:
        message += _fixed(5, int(request["ownHlc"]))
    return bytes((PULL,)) + message


def _delta(delta: Delta) -> bytes:
    columns = b"".join(
        _field(4, _field(1, cell["column"].encode()) + _field(2, json.dumps(cell["value"]).encode()))
        for cell in delta["columns"]
    )
    return b"".join(
        [
            b"\x08" + _varint(_OPS.index(delta["op"])),
            _field(2, delta["table"].encode()),
            _field(3, delta["rowId"].encode()),
            columns,
            _fixed(5, int(delta["hlc"])),
            _field(6, delta["clientId"].encode()),
            _field(7, delta["deltaId"].encode()),
        ]
    )


def _response(message: bytes) -> Page:
    page: Page = {"deltas": [], "serverHlc": "0", "hasMore": False}
    for number, value in _fields(message):
        if number == 1:
            page["deltas"].append(_read_delta(value))
        elif number == 2:
            page["serverHlc"] = str(value)
        elif number == 3:
            page["hasMore"] = bool(value)
    return page


def _read_delta(message: bytes) -> Delta:
    delta: Delta = {"op": "", "table": "", "rowId": "", "columns": [], "hlc": "0", "clientId": "", "deltaId": ""}
    for number, value in _fields(message):
        if number == 1:
            delta["op"] = _OPS[value]
        elif number == 4:
            cell = dict(_fields(value))
            delta["columns"].append({"column": cell[1].decode(), "value": json.loads(cell[2])})
        elif number == 5:
            delta["hlc"] = str(value)
        else:
            delta[{2: "table", 3: "rowId", 6: "clientId", 7: "deltaId"}[number]] = value.decode()
    return delta


def _fields(message: bytes) -> Iterator[tuple[int, Any]]:
    place = 0
    while place < len(message):
        key, place = _read_varint(message, place)
        number, kind = key >> 3, key & 7
        if kind == _VARINT:
            value, place = _read_varint(message, place)
            yield number, value
        elif kind == _FIXED64:
            yield number, int.from_bytes(message[place : place + 8], "little")
            place += 8
        elif kind == _BYTES:
            length, place = _read_varint(message, place)
            yield number, message[place : place + length]
            place += length
        else:
            raise AssertionError(f"field {number} is of wire type {kind}")


def _read_varint(message: bytes, place: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = message[place]
        value |= (byte & 0x7F) << shift
        place, shift = place + 1, shift + 7
        if byte < 0x80:
            return value, place


def _field(number: int, value: bytes) -> bytes:
    return _varint(number << 3 | _BYTES) + _varint(len(value)) + value


def _fixed(number: int, value: int) -> bytes:
    return _varint(number << 3 | _FIXED64) + value.to_bytes(8, "little")


def _varint(value: int) -> bytes:
    made = bytearray()
    while value > 0x7F:
        made.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*made, value])
