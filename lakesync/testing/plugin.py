"""Fixtures for the tests of apps that use LakeSync; pytest loads them by itself where `lakesync` is installed.

A client is an app's local database. It pushes changes to a gateway, LakeSync's server, and pulls those of others.

Example:

    def test_a_note_reaches_other_clients(lakesync_client):
        alice, bob = lakesync_client("alice", [NOTES]), lakesync_client("bob", [NOTES])
        alice["notes"].insert(text="hello")
        alice.sync()
        bob.sync()
        assert [row["text"] for row in bob["notes"]] == ["hello"]
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, TypeVar

import pytest

if TYPE_CHECKING:
    from pathlib import Path

    from lakesync.client import Client
    from lakesync.engine import SyncGateway
    from lakesync.model.action_handlers import ActionDiscovery
    from lakesync.model.schema import TableSchema
    from lakesync.model.types import ActionPush, ActionResponse, PushResult, SyncPull, SyncPush, SyncResponse

T = TypeVar("T")


class Network:
    """The connection between a test's clients and its gateway, which a test can break."""

    def __init__(self) -> None:
        self.down = False
        """Whether every request fails, before the gateway receives it."""
        self.lose_responses = False
        """Whether every request fails after the gateway has processed it, because its response is lost."""

    def send(self, request: Callable[[], T]) -> T:
        """Call a function that sends a request to the gateway, and return its result.

        Raises:
            UnreachableError: `down` or `lose_responses` is set.
        """
        from lakesync.client.errors import UnreachableError

        if self.down:
            raise UnreachableError("the test's network is down")
        response = request()
        if self.lose_responses:
            raise UnreachableError("the test's network lost the response")
        return response


@pytest.fixture
def lakesync_gateway() -> Iterator[SyncGateway]:
    """A gateway in this process, with its data in memory; it is closed at the end of the test."""
    from lakesync.engine import open_gateway

    with open_gateway("test") as gateway:
        yield gateway


@pytest.fixture
def lakesync_network() -> Network:
    """The connection between the test's clients and its gateway."""
    return Network()


@pytest.fixture
def lakesync_client(
    lakesync_gateway: SyncGateway, lakesync_network: Network, tmp_path: Path
) -> Iterator[Callable[..., Client]]:
    """A function that opens a client of the test's gateway: `lakesync_client("alice", [SCHEMA], team="red")`.

    Further keyword arguments are claims of the client's token. A second call with the same client id opens the same
    database again. All clients are closed at the end of the test.
    """
    from lakesync.client import LocalTransport, open_client

    class NetworkTransport(LocalTransport):
        """Sends every request through the test's network."""

        def push(self, push: SyncPush) -> PushResult:
            send_push = super().push
            return lakesync_network.send(lambda: send_push(push))

        def pull(self, pull: SyncPull) -> SyncResponse:
            send_pull = super().pull
            return lakesync_network.send(lambda: send_pull(pull))

        def execute_actions(self, push: ActionPush) -> ActionResponse:
            send_actions = super().execute_actions
            return lakesync_network.send(lambda: send_actions(push))

        def describe_actions(self) -> ActionDiscovery:
            return lakesync_network.send(super().describe_actions)

    with ExitStack() as closing:

        def open_test_client(
            client_id: str, schemas: list[TableSchema | Mapping[str, Any]], **claims: str | list[str]
        ) -> Client:
            transport = NetworkTransport(lakesync_gateway, claims)
            client = open_client(
                tmp_path / f"{client_id}.db", transport=transport, client_id=client_id, schemas=schemas
            )
            return closing.enter_context(client)

        yield open_test_client
