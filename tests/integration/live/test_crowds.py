"""Many connections at once: each gets every change, also in a burst; a client that does not read delays no other."""

from __future__ import annotations

import asyncio
import socket as sockets
from contextlib import suppress

import requests

from tests.integration.gateway_support import DEADLINE, Client, delta, until
from tests.integration.live.live_crowd import ask, broadcast_of, crowded, dial, ended, pull, push

MANY = 1000
HUNDREDS = 200


def gauge(url, name):
    text = requests.get(url + "/metrics", timeout=DEADLINE).text
    return next((float(line.split()[-1]) for line in text.splitlines() if line.startswith(name)), 0.0)


def names(gateway, url, count):
    return [Client(url, gateway, f"client-{n}") for n in range(count)]


def test_a_thousand_connections_each_get_the_broadcast(serve):
    server = serve(
        http_limits={"websocket_connections_per_gateway": MANY + 1, "websocket_slow_reader_seconds": DEADLINE}
    )
    gateway = server.client().gateway
    writer = Client(server.url, gateway, "writer")

    async def run():
        clients = names(gateway, server.url, MANY)
        lines = await asyncio.gather(*map(dial, clients))
        for page in await asyncio.gather(*map(pull, lines, clients)):
            assert page.deltas == ()
        assert await asyncio.to_thread(gauge, server.url, "lakesync_websocket_connections ") == MANY
        desk = await dial(writer)
        for n in range(3):
            await push(desk, writer, delta(f"t{n}", {"n": n}, client="writer"))
            for page in await asyncio.gather(*map(broadcast_of, lines)):
                assert [(each.op, each.row_id) for each in page.deltas] == [("INSERT", f"t{n}")]
        await asyncio.gather(desk.close(), *(line.close() for line in lines))

    crowded(run())
    until(lambda: gauge(server.url, "lakesync_websocket_connections ") == 0, "the end of all connections")


def test_clients_converge_through_a_storm_of_reconnects(serve):
    server = serve()
    gateway = server.client().gateway
    writer = Client(server.url, gateway, "writer")

    async def run():
        clients = names(gateway, server.url, HUNDREDS)
        cursors = [0] * HUNDREDS
        held = [set() for _ in range(HUNDREDS)]
        for turn in range(3):
            lines = await asyncio.gather(*map(dial, clients))
            for place, page in enumerate(await asyncio.gather(*map(pull, lines, clients, cursors))):
                cursors[place] = page.server_hlc
                held[place] |= {each.row_id for each in page.deltas}
            desk = await dial(writer)
            await push(desk, writer, delta(f"t{turn}", {"n": turn}, client="writer"))
            await desk.close()
            for line in lines:
                line.transport.abort()
        lines = await asyncio.gather(*map(dial, clients))
        for place, page in enumerate(await asyncio.gather(*map(pull, lines, clients, cursors))):
            held[place] |= {each.row_id for each in page.deltas}
        assert all(rows == {"t0", "t1", "t2"} for rows in held)
        await asyncio.gather(*(line.close() for line in lines))

    crowded(run())
    until(lambda: gauge(server.url, "lakesync_websocket_connections ") == 0, "the end of all connections")


def test_a_slow_reader_is_disconnected_while_others_continue(serve):
    server = serve(http_limits={"websocket_slow_reader_seconds": 1.5})
    gateway = server.client().gateway
    writer, slow, quick = (Client(server.url, gateway, name) for name in ("writer", "slow", "quick"))

    async def run():
        narrow = sockets.socket()
        narrow.setsockopt(sockets.SOL_SOCKET, sockets.SO_RCVBUF, 4096)
        narrow.connect(("127.0.0.1", int(server.url.rpartition(":")[2])))
        narrow.setblocking(False)
        idle = await dial(slow, sock=narrow, max_queue=1, ping_interval=None)
        line, desk = await dial(quick), await dial(writer)
        await pull(idle, slow)
        await pull(line, quick)
        idle.transport.pause_reading()
        rows = 0
        while await asyncio.to_thread(gauge, server.url, 'lakesync_websocket_closes_total{code="1013"}') == 0:
            await push(desk, writer, delta(f"t{rows}", {"n": "x" * 200_000}, client="writer"))
            assert [each.row_id for each in (await broadcast_of(line)).deltas] == [f"t{rows}"]
            rows += 1
        await push(desk, writer, delta("last", {"n": 1}, client="writer"))
        assert [each.row_id for each in (await broadcast_of(line)).deltas] == ["last"]
        idle.transport.resume_reading()
        assert await ended(idle) == 1013
        again = await dial(slow)
        page = await pull(again, slow)
        seen = {each.row_id for each in page.deltas}
        while page.has_more:  # a page has at most 4 MiB
            page = await pull(again, slow, page.server_hlc)
            seen |= {each.row_id for each in page.deltas}
        assert len(seen) == rows + 1
        await asyncio.gather(*(each.close() for each in (line, desk, again)))

    crowded(run())


def test_a_slow_reader_of_answers_is_closed(serve):
    server = serve(http_limits={"websocket_slow_reader_seconds": 0.5})
    client = server.client()
    client.push(*(delta(f"t{n}", {"n": "x" * 1000}) for n in range(300)))

    async def run():
        idle = await dial(client, max_queue=1, ping_interval=None)
        asked = 0
        while await asyncio.to_thread(gauge, server.url, 'lakesync_websocket_closes_total{code="1013"}') == 0:
            assert asked < 400, "the queue must be bounded"
            with suppress(TimeoutError):
                await asyncio.wait_for(ask(idle, client), 0.2)
                asked += 1
        assert await ended(idle) == 1013

    crowded(run())
