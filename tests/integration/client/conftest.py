"""Clients over HTTP of one gateway of a served engine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from lakesync.client import Client, open_client
from tests.integration.gateway_support import Served, sign

TODOS = {
    "table": "todos",
    "columns": [
        {"name": "title", "type": "string"},
        {"name": "done", "type": "boolean"},
        {"name": "n", "type": "number"},
    ],
}
Open = Callable[..., Client]


@pytest.fixture
def opened(served: Served, tmp_path) -> Iterator[Open]:
    """Opens clients of one separate gateway, by name; closes them at the end."""
    clients: list[Client] = []
    gateway = served.client().gateway

    def start(name: str, **options: Any) -> Client:
        given = {"url": served.url, "gateway": gateway, "token": sign(name, gateway), "schemas": [TODOS], **options}
        clients.append(open_client(tmp_path / f"{name}.db", **given))
        return clients[-1]

    start.gateway = gateway  # type: ignore[attr-defined]
    yield start
    for client in clients:
        client.close()
