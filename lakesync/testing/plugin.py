"""Fixtures for the tests of apps that use LakeSync; pytest loads them by itself where `lakesync` is installed.

def test_a_note_reaches_everybody(lakesync_client):
    alice, bob = lakesync_client("alice", [NOTES]), lakesync_client("bob", [NOTES])
    alice["notes"].insert(text="hello")
    alice.sync()
    bob.sync()
    assert [row["text"] for row in bob["notes"]] == ["hello"]
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pathlib import Path

    from lakesync.client import Client
    from lakesync.client.errors import UnreachableError
    from lakesync.engine import SyncGateway
    from lakesync.model.action_handlers import ActionDiscovery
    from lakesync.model.schema import TableSchema
    from lakesync.model.types import ActionPush, ActionResponse, PushResult, SyncPull, SyncPush, SyncResponse


class Network:
    """Between the test's clients and its gateway: `down` has every request fail as it does without a network.

    `lose_answers` lets the gateway process requests whose answers are lost.
    """

    def __init__(self) -> None:
        self.down = False
        self.lose_answers = False

    def carry(self, ask: Callable[[], Any]) -> Any:
        """Ask the gateway, if that is to be."""
        if self.down:
            raise self._unreachable("the test's network is down")
        answer = ask()
        if self.lose_answers:
            raise self._unreachable("the test's network lost the answer")
        return answer

    @staticmethod
    def _unreachable(why: str) -> UnreachableError:
        from lakesync.client.errors import UnreachableError

        return UnreachableError(why)


@pytest.fixture
def lakesync_gateway() -> Iterator[SyncGateway]:
    """A whole gateway in this process, in memory, gone with the test."""
    from lakesync.engine import open_gateway

    with open_gateway("test") as gateway:
        yield gateway


@pytest.fixture
def lakesync_network() -> Network:
    """The network between the test's clients and its gateway."""
    return Network()


@pytest.fixture
def lakesync_client(
    lakesync_gateway: SyncGateway, lakesync_network: Network, tmp_path: Path
) -> Iterator[Callable[..., Client]]:
    """Opens a client of the test's gateway: `lakesync_client("alice", [SCHEMA], team="red")`.

    Further arguments are claims of its token. Opened again by the same name it has the database that it had.
    """
    from lakesync.client import LocalTransport, open_client

    class Carried(LocalTransport):
        def push(self, push: SyncPush) -> PushResult:
            return lakesync_network.carry(lambda: super(Carried, self).push(push))  # type: ignore[no-any-return]

        def pull(self, pull: SyncPull) -> SyncResponse:
            return lakesync_network.carry(lambda: super(Carried, self).pull(pull))  # type: ignore[no-any-return]

        def execute_actions(self, push: ActionPush) -> ActionResponse:
            return lakesync_network.carry(lambda: super(Carried, self).execute_actions(push))  # type: ignore[no-any-return]

        def describe_actions(self) -> ActionDiscovery:
            return lakesync_network.carry(super().describe_actions)  # type: ignore[no-any-return]

    with ExitStack() as closing:

        def start(client_id: str, schemas: list[TableSchema | Mapping[str, Any]], **claims: str | list[str]) -> Client:
            transport = Carried(lakesync_gateway, claims)
            client = open_client(
                tmp_path / f"{client_id}.db", transport=transport, client_id=client_id, schemas=schemas
            )
            return closing.enter_context(client)

        yield start
