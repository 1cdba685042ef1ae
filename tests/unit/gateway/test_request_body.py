"""Bodies are read without blocking the event loop."""

from __future__ import annotations

import asyncio
import gzip
import json
import threading

from starlette.requests import Request

from gateway import request_body
from gateway.request_body import decode_if_large, push_decoder, read_body

NESTED = json.loads("[" * 90 + "]" * 90)


def test_others_are_served_while_a_large_push_is_decoded():
    deltas = [
        {
            "op": "INSERT",
            "table": "t",
            "rowId": f"r{n}",
            "clientId": "c",
            "columns": [{"column": "a", "value": NESTED}],
            "hlc": str(n),
            "deltaId": f"d{n}",
        }
        for n in range(2500)
    ]
    body = json.dumps({"clientId": "c", "deltas": deltas, "lastSeenHlc": "0"}).encode()

    async def receive():
        return {"type": "http.request", "body": body, "more_body": False}

    async def read():
        request = Request({"type": "http", "headers": []}, receive)
        reading = asyncio.create_task(decode_if_large(push_decoder(request), await read_body(request, len(body))))
        turns = 0
        while not reading.done():
            await asyncio.sleep(0)
            turns += 1
        push, _ = (await reading)()
        assert len(push.deltas) == len(deltas)
        return turns

    assert asyncio.run(read()) > 20


def test_others_are_served_while_a_large_body_is_unpacked(monkeypatch):
    body = gzip.compress(bytes(32 << 20), 1)
    go_on, gunzip = threading.Event(), request_body._gunzip

    def held(*arguments):
        assert go_on.wait(60)
        return gunzip(*arguments)

    monkeypatch.setattr(request_body, "_gunzip", held)

    async def receive():
        return {"type": "http.request", "body": body, "more_body": False}

    async def read():
        request = Request({"type": "http", "headers": [(b"content-encoding", b"gzip")]}, receive)
        reading = asyncio.create_task(read_body(request, 32 << 20))
        for _ in range(20):
            await asyncio.sleep(0)
        assert not reading.done()
        go_on.set()
        assert len(await reading) == 32 << 20

    asyncio.run(read())
