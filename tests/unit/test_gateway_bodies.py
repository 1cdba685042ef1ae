"""Bodies are read without holding up the event loop."""

from __future__ import annotations

import asyncio
import json

from starlette.requests import Request

from gateway.bodies import read_push

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
        reading = asyncio.create_task(read_push(Request({"type": "http", "headers": []}, receive), len(body)))
        turns = 0
        while not reading.done():
            await asyncio.sleep(0)
            turns += 1
        assert len((await reading).deltas) == len(deltas)
        return turns

    assert asyncio.run(read()) > 20
