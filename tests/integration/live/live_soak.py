"""W2: the reference's client over WebSocket ends with its rows, whatever connection breaks.

A random search that no seed reproduces: `pytest tests/integration/live/live_soak.py`, apart from the suite.
"""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from tests.integration.gateway_support import Client
from tests.integration.live.live_crowd import crowded
from tests.integration.live.live_model import StockClient, merged

PEOPLE = (("ann", "a"), ("ben", "b"), ("cat", "a"), ("dan", "b"))
STEPS = 40
THINKS = 0.03
"""The longest pause between two cycles, in seconds; broadcasts arrive during it."""
RULES = {
    "version": 1,
    "buckets": [{"name": "mine", "tables": [], "filters": [{"column": "group", "op": "eq", "value": "jwt:group"}]}],
}


def act(client: StockClient, chance: random.Random) -> None:
    """One edit that the client's rows permit; only the creator of a row inserts it, also again."""
    mine = [f"{client.name}-{n}" for n in range(3)]
    values: dict[str, Any] = {"x": chance.randrange(9)}
    if chance.random() < 0.4:
        values["group"] = chance.choice("ab")
    lacking = [row for row in mine if row not in client.rows]
    if lacking and chance.random() < 0.6:
        row = chance.choice(lacking)
        if not any(edit.row_id == row for edit in client.outbox):
            client.edit("INSERT", row, {"group": chance.choice("ab"), "y": 0, **values})
    elif client.rows:
        row = chance.choice(sorted(client.rows))
        if chance.random() < 0.15:
            client.edit("DELETE", row, {})
        else:
            client.edit("UPDATE", row, values)


async def live(client: StockClient, chance: random.Random) -> None:
    for _ in range(STEPS):
        for _ in range(chance.randrange(3)):
            act(client, chance)
        match chance.random():
            case drawn if drawn < 0.05:
                client.reload()
            case drawn if drawn < 0.15:
                await client.cut()
        await client.cycle()
        await asyncio.sleep(chance.random() * THINKS)


@pytest.fixture(scope="module")
def impatient(serve):
    """A server that soon stops waiting for a client and continues with its pages."""
    return serve(page_wait_seconds=0.01)


@pytest.mark.parametrize("filtered", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_w2_every_client_ends_with_its_rows(impatient, seed, filtered):
    gateway = impatient.client().gateway
    if filtered:
        admin = Client(impatient.url, gateway, "an-admin", "admin")
        assert admin.call("POST", "/admin/sync-rules/{gw}", json=RULES).status_code == 200
        assert admin.call("POST", "/admin/settings/{gw}", json={"writeScope": "any"}).status_code == 200
    clients = [
        StockClient(
            Client(impatient.url, gateway, name, claims={"group": group}), group, random.Random(f"{seed} {name}")
        )
        for name, group in PEOPLE
    ]

    async def run():
        await asyncio.gather(*(live(client, random.Random(f"{client.name} {seed}")) for client in clients))
        for client in clients:
            await client.settle()
        for client in clients:
            await client.cut()
            await client.connect()
            await client.catch_up()
            await client.cut()

    crowded(run())
    rows = merged(delta for client in clients for delta in client.sent.values())
    for client in clients:
        group = client.claims["group"]
        visible = {row_id: row for row_id, row in rows.items() if not filtered or row.get("group") == group}
        assert client.rows == visible, client.name
    assert sum(client.broadcasts for client in clients) > 0
