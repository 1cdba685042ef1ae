"""Attacks by another user of the machine on the loopback ports that Spark opens for its own components."""

from __future__ import annotations

import socket
import struct
from contextlib import suppress

import psutil

SECONDS = 20.0
_REQUEST = 3
"""The type of a remote procedure call in Spark's network protocol."""


def ports_of(port):
    """Return every port on which the process or one of its children listens."""
    listening = [each for each in psutil.net_connections("tcp") if each.status == psutil.CONN_LISTEN]
    (pid,) = {each.pid for each in listening if each.laddr.port == port}
    return {each.laddr.port for each in listening if each.pid == pid}


def called(port):
    """Return Spark's answer to an RPC whose argument should be a serialised Java object, and is not."""

    def text(said):
        return struct.pack(">H", len(said)) + said

    body = b"\0" + b"\1" + text(b"127.0.0.1") + struct.pack(">I", port) + text(b"endpoint-verifier") + b"no object"
    call = struct.pack(">BQI", _REQUEST, 1, len(body)) + body
    with socket.create_connection(("127.0.0.1", port), SECONDS) as line:
        line.sendall(struct.pack(">Q", len(call) + 8) + call)
        said = b""
        with suppress(TimeoutError, ConnectionResetError):
            while len(said) < 8 or len(said) < struct.unpack(">Q", said[:8])[0]:
                if not (part := line.recv(65536)):
                    break
                said += part
    return said


def test_spark_deserialises_nothing_from_an_unauthenticated_caller(spark_server):
    config = spark_server["config"]
    others = ports_of(config.spark.port) - {config.spark.port, config.spark.ui_port}
    assert others, "Spark's own ports were not found"
    answers = {port: called(port) for port in others}
    assert not any(b"stream header" in said or b"deserial" in said.lower() for said in answers.values()), answers
