"""The transport to a gateway in the same process, for tests and for apps that embed a gateway.

It depends on a protocol, `LocalGateway`, because the client and the engine must not import each other.
"""

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
    """The methods of `SyncGateway` (`lakesync.engine`) that a client calls. `claims` are those of its token."""

    gateway_id: str

    def handle_push(self, push: SyncPush, claims: Claims | None = None) -> PushResult:
        """Store deltas, all or none."""

    def submit_pull(self, pull: SyncPull, claims: Claims, *, knows_resync: bool = False) -> Future[SyncResponse]:
        """Return a page; with `knows_resync`, raise ResyncRequiredError for a cursor that it does not know."""

    def handle_action(self, push: ActionPush, claims: Claims | None = None) -> ActionResponse:
        """Execute actions."""

    def describe_actions(self) -> ActionDiscovery:
        """Return the connectors and their actions."""

    def connector_types(self) -> list[ConnectorDescriptor]:
        """Return the types of connector that it supports."""

    def config(self) -> Any:
        """Return its configuration; `schemas` maps each registered table to its schema and version."""


class LocalTransport:
    """Calls a gateway object directly, without a network."""

    def __init__(self, gateway: LocalGateway, claims: Mapping[str, str | list[str]] | None = None) -> None:
        """Create a transport to a gateway.

        Args:
            gateway: the gateway; `close` leaves it open.
            claims: the claims that a token would have, which decide what the client may see. `sub` is the client's id
                by default.
        """
        self._gateway = gateway
        self.gateway_id = gateway.gateway_id
        self._claims = dict(claims or {})

    def push(self, push: SyncPush) -> PushResult:
        """See `SyncTransport.push`."""
        return self._gateway.handle_push(push, self._claims_of(push.client_id))

    def pull(self, pull: SyncPull) -> SyncResponse:
        """See `SyncTransport.pull`."""
        return self._gateway.submit_pull(pull, self._claims_of(pull.client_id), knows_resync=True).result()

    def checkpoint(self, client_id: str) -> AbstractContextManager[Checkpoint]:
        """Raise NotFoundError, because only the pipeline makes checkpoints."""
        raise NotFoundError(f"a local gateway has no checkpoint for {client_id!r}: pull from cursor 0")

    def schema(self, table: str) -> ServerSchema | None:
        """See `SchemaTransport.schema`."""
        registered = self._gateway.config().schemas.get(table)
        return None if registered is None else ServerSchema(registered.schema, registered.version)

    def execute_actions(self, push: ActionPush) -> ActionResponse:
        """See `ActionTransport.execute_actions`."""
        return self._gateway.handle_action(push, self._claims_of(push.client_id))

    def describe_actions(self) -> ActionDiscovery:
        """See `ActionTransport.describe_actions`."""
        return self._gateway.describe_actions()

    def list_connector_types(self) -> list[ConnectorDescriptor]:
        """See `ConnectorTypesTransport.list_connector_types`."""
        return self._gateway.connector_types()

    def close(self) -> None:
        """Do nothing: the app closes its gateway."""

    def _claims_of(self, client_id: str) -> Claims:
        """Return the claims with which a client's request is served."""
        return {"sub": client_id, **self._claims}
