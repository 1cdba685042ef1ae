"""A gateway in the same process."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future
from contextlib import AbstractContextManager
from typing import Any, Protocol

from lakesync.client.transports.base import Checkpoint, ServerSchema
from lakesync.model.action_handlers import ActionDiscovery, ConnectorDescriptor
from lakesync.model.errors import NotFoundError
from lakesync.model.types import ActionPush, ActionResponse, Claims, PushResult, SyncPull, SyncPush, SyncResponse


class LocalGateway(Protocol):
    """What `SyncGateway` offers its clients."""

    gateway_id: str

    def handle_push(self, push: SyncPush, claims: Claims | None = None) -> PushResult:
        """Take deltas."""

    def submit_pull(self, pull: SyncPull, claims: Claims, *, resync_refused: bool = False) -> Future[SyncResponse]:
        """Give a page."""

    def handle_action(self, push: ActionPush, claims: Claims | None = None) -> ActionResponse:
        """Do actions."""

    def describe_actions(self) -> ActionDiscovery:
        """Say which there are."""

    def connector_types(self) -> list[ConnectorDescriptor]:
        """Say which types of connector there are."""

    def config(self) -> Any:
        """Schemas, among others."""


class LocalTransport:
    """Calls a `SyncGateway` by functions: for tests, and for apps that have their gateway with them."""

    def __init__(self, gateway: LocalGateway, claims: Mapping[str, str | list[str]] | None = None) -> None:
        """Args: claims: what a token would say; `sub` is the client's own id unless given."""
        self._gateway = gateway
        self.gateway_id = gateway.gateway_id
        self._claims = dict(claims or {})

    def push(self, push: SyncPush) -> PushResult:
        """Take deltas."""
        return self._gateway.handle_push(push, self._who(push.client_id))

    def pull(self, pull: SyncPull) -> SyncResponse:
        """A page."""
        return self._gateway.submit_pull(pull, self._who(pull.client_id), resync_refused=True).result()

    def checkpoint(self, client_id: str) -> AbstractContextManager[Checkpoint]:
        """There is none: its files are the pipeline's."""
        raise NotFoundError(f"a local gateway has no checkpoint for {client_id!r}: pull from 0")

    def schema(self, table: str) -> ServerSchema | None:
        """A table's registered schema."""
        known = self._gateway.config().schemas.get(table)
        return None if known is None else ServerSchema(known.schema, known.version)

    def execute_actions(self, push: ActionPush) -> ActionResponse:
        """Do actions."""
        return self._gateway.handle_action(push, self._who(push.client_id))

    def describe_actions(self) -> ActionDiscovery:
        """What there is to ask for."""
        return self._gateway.describe_actions()

    def list_connector_types(self) -> list[ConnectorDescriptor]:
        """Every type of connector that may be registered."""
        return self._gateway.connector_types()

    def close(self) -> None:
        """Nothing is held."""

    def _who(self, client_id: str) -> Claims:
        return {"sub": client_id, **self._claims}
