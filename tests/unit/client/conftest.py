"""Clients of `lakesync.open`, each with a separate file, over one gateway in this process."""

from __future__ import annotations

import sqlite3
from contextlib import closing

import pytest

import lakesync
from lakesync.client import LocalTransport


@pytest.fixture
def gateway():
    with lakesync.open_gateway("g") as opened:
        yield opened


@pytest.fixture
def opened(request, gateway, tmp_path):
    """Opens a client by name, with the module's SCHEMAS, over a file on which `sql` was executed before."""
    clients = []

    def start(name="alice", sql="", **options):
        if sql:
            with closing(sqlite3.connect(tmp_path / f"{name}.db")) as own:
                own.executescript(sql)
        options = {
            "client_id": name,
            "schemas": request.module.SCHEMAS,
            "transport": LocalTransport(gateway),
            **options,
        }
        clients.append(lakesync.open(tmp_path / f"{name}.db", **options))
        return clients[-1]

    yield start
    for client in clients:
        client.close()
