"""The protocols of transports, by which a client sends requests to its gateway; `LocalTransport`; and tokens.

`lakesync.client.sync` calls a transport. There is one protocol for each capability: every transport pushes and pulls
(`SyncTransport`); the other protocols are optional, and are recognised by `isinstance`. Every method blocks. If the
gateway responds with an error, the method raises the class of `lakesync.model.errors` with the error's code. If no
complete response arrives, it raises `UnreachableError`; then the gateway may or may not have processed the request.

A transport sends a token with each request. The app passes a fixed one, or a function that returns a new one each time:
a token provider. `TokenHolder` has the token and renews it; the command line uses the other functions too.
"""

from __future__ import annotations

import base64
import binascii
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, Protocol, runtime_checkable

import msgspec

from lakesync.client.errors import UnreachableError
from lakesync.model.action_handlers import ActionDiscovery, ConnectorDescriptor
from lakesync.model.errors import AuthError, ConfigurationError, NotFoundError
from lakesync.model.schema import TableSchema
from lakesync.model.types import ActionPush, ActionResponse, Claims, PushResult, SyncPull, SyncPush, SyncResponse

Token = str | Callable[[], str]
"""A JWT, or a function that returns one that is valid now."""
_RENEW_BEFORE_SECONDS = 30.0
"""A token is renewed this long before its expiry; at half of its remaining lifetime if that is less."""
_RETRY_SECONDS = 5.0
"""A provider that failed is called again after this time, while the old token is still valid."""


class SyncTransport(Protocol):
    """Pushes and pulls. Several threads call it, one at a time, so nothing in it may be bound to a thread."""

    def push(self, push: SyncPush) -> PushResult:
        """Push deltas; the gateway stores all of them or none. A repeated push changes nothing."""

    def pull(self, pull: SyncPull) -> SyncResponse:
        """Return a page: the changes after the pull's cursor, and the cursor for the next pull."""

    def close(self) -> None:
        """Close all connections."""


class Checkpoint(NamedTuple):
    """A checkpoint that is being received: all rows that a client may see, for its first sync."""

    cursor: int
    """The cursor of the pull that follows it (header `X-Checkpoint-Hlc`)."""
    frames: Iterator[bytes]
    """Protobuf messages, each with the deltas of some rows; a row is never split."""


@runtime_checkable
class CheckpointTransport(Protocol):
    """Fetches checkpoints."""

    def checkpoint(self, client_id: str) -> AbstractContextManager[Checkpoint]:
        """Open the newest checkpoint for a client; read its frames inside the context.

        Raises:
            NotFoundError: the gateway has none for this client, which then pulls from cursor 0.
        """


class ServerSchema(NamedTuple):
    """A table's schema as it is registered at the gateway."""

    schema: TableSchema
    version: int
    """From 1; it grows with every change of the schema."""


@runtime_checkable
class SchemaTransport(Protocol):
    """Reads schemas."""

    def schema(self, table: str) -> ServerSchema | None:
        """Return a table's registered schema; None for an unregistered table."""


@runtime_checkable
class ActionTransport(Protocol):
    """Executes actions."""

    def execute_actions(self, push: ActionPush) -> ActionResponse:
        """Execute actions; return one outcome for each, in order. An action that was sent before runs only once."""

    def describe_actions(self) -> ActionDiscovery:
        """Return the connectors and their actions."""


@runtime_checkable
class ConnectorTypesTransport(Protocol):
    """Lists the types of connector that a gateway supports."""

    def list_connector_types(self) -> list[ConnectorDescriptor]:
        """Return every type, with the JSON Schema of its settings."""


class Message(NamedTuple):
    """A page that arrived on a subscription."""

    is_broadcast: bool
    """Whether the gateway sent it without a pull."""
    page: SyncResponse


class Subscription(Protocol):
    """An open connection on which the gateway also sends pages without a pull, as rows change (broadcasts).

    Apply its messages in the order in which `receive` returns them.
    """

    def pull(self, pull: SyncPull) -> None:
        """Send a pull without waiting; `receive` returns the response, perhaps after broadcasts."""

    def receive(self, timeout: float | None) -> Message | None:
        """Wait for a message.

        Args:
            timeout: seconds; None waits without limit.

        Returns:
            None after the timeout, or if `wake` was called.

        Raises:
            LakeSyncError: why the connection has ended.
        """

    def wake(self) -> None:
        """Make a waiting `receive` return None. Any thread may call it."""

    def close(self) -> None:
        """Close the connection."""


@runtime_checkable
class RealtimeTransport(Protocol):
    """Opens subscriptions."""

    def connect(self) -> Subscription:
        """Open a subscription to the gateway's changes."""


@runtime_checkable
class NamedTransport(Protocol):
    """Has the id of its gateway, so that a database cannot be synchronised with another gateway by mistake."""

    gateway_id: str
    """The gateway's id."""


@runtime_checkable
class CancellableTransport(Protocol):
    """Can cancel requests."""

    def cancel_requests(self) -> None:
        """Make every request in progress raise `UnreachableError` at once. Any thread may call it."""


@runtime_checkable
class ClockMeasuringTransport(Protocol):
    """Measures the gateway's clock."""

    @property
    def clock_offset(self) -> float | None:
        """Seconds by which this machine's clock is ahead of the gateway's, to a second; None if it is unknown."""


@runtime_checkable
class TokenTransport(Protocol):
    """Sends a token that can be replaced."""

    def set_token(self, token: Token) -> None:
        """Send this token, or the tokens of this function, from now on."""


class LocalGateway(Protocol):
    """The methods of `SyncGateway` (`lakesync.engine`) that a client calls. `claims` are those of its token.

    It is a protocol, because the client and the engine must not import each other.
    """

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
    """Calls a gateway in the same process, without a network: for tests, and for apps that embed a gateway."""

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


def claims(token: str) -> dict[str, Any]:
    """Return the claims of a JWT without verifying it, because only the gateway can; an empty dict if it is no JWT."""
    parts = token.split(".")
    if len(parts) != 3:
        return {}
    try:
        body = base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4))
        decoded = msgspec.json.decode(body)
    except (binascii.Error, ValueError, msgspec.DecodeError):
        return {}
    return decoded if isinstance(decoded, dict) else {}


def check_token(token: str) -> str:
    """Check that a token can be sent in a header, and return it.

    Raises:
        AuthError: the token contains an invalid character. The message does not quote it, because it is a secret.
    """
    if not (token.isascii() and token.isprintable()) or " " in token:
        raise AuthError("the token contains a space, a line break or a character outside of ASCII: remove it")
    return token


class TokenHolder:
    """A transport's token: fixed, or from a provider.

    The provider is called before the first request, before its token expires, and after the gateway rejected it.
    Thread-safe: one thread at a time calls the provider; the others wait and use its token.
    """

    def __init__(self, token: Token | None) -> None:
        """Hold a token or a provider; None if the gateway needs no token."""
        self._lock = threading.RLock()
        self._provider: Callable[[], str] | None = None
        self._token: str | None = None
        self._renew_at: float | None = None
        """When to call the provider again, in seconds since 1970; None: only after the token was rejected."""
        if token is not None:
            self.replace(token)

    def replace(self, token: Token) -> None:
        """Use another token or provider."""
        with self._lock:
            self._provider = token if callable(token) else None
            self._token = None if callable(token) else token
            self._renew_at = None

    @property
    def renewable(self) -> bool:
        """Whether there is a provider that can replace a rejected token."""
        return self._provider is not None

    def current(self) -> str | None:
        """Return the token to send now; None if the gateway needs none.

        Raises:
            ConfigurationError: the provider did not return a string, or returned an empty one.
            AuthError: the token contains a character that a header cannot have.
            UnreachableError: the provider raised an OSError, as without a network, and there is no valid token.
        """
        with self._lock:
            if self._provider is not None and (self._token is None or self._is_due()):
                self._call_provider(self._provider)
            return None if self._token is None else check_token(self._token)

    def renew(self, rejected: str | None) -> None:
        """Replace a token that the gateway rejected, unless another thread has replaced it meanwhile.

        Args:
            rejected: the token that was sent.

        Raises:
            ConfigurationError, UnreachableError: as for `current`.
        """
        with self._lock:
            if self._provider is not None and self._token == rejected:
                self._token = None
                self._call_provider(self._provider)

    def _call_provider(self, provider: Callable[[], str]) -> None:
        """Store the provider's token and when to renew it; after an OSError, keep a token that is still valid.

        Raises:
            ConfigurationError, UnreachableError: as for `current`.
        """
        try:
            token = provider()
        except OSError as error:  # requests, httpx and urllib raise it without a network
            if self._token is not None and not self._has_expired(self._token):
                self._renew_at = time.time() + _RETRY_SECONDS
                return
            raise UnreachableError(f"the token provider failed: {error!r}") from error
        if not isinstance(token, str) or not token:  # the message does not quote the value: bytes may be a token
            returned = "an empty string" if isinstance(token, str) else f"a value of type {type(token).__name__}"
            raise ConfigurationError(f"the token provider returned {returned}: return a token as a string")
        self._token = token
        expires = claims(token).get("exp")
        seconds_left = expires - time.time() if isinstance(expires, int | float) else 0.0
        # a token that looks expired is sent: this machine's clock may be wrong, and the gateway's decides
        lead = min(_RENEW_BEFORE_SECONDS, seconds_left / 2)
        self._renew_at = None if seconds_left <= 0 else time.time() + seconds_left - lead

    def _is_due(self) -> bool:
        """Return whether it is time to renew the token."""
        return self._renew_at is not None and time.time() >= self._renew_at

    @staticmethod
    def _has_expired(token: str) -> bool:
        """Return whether a token has expired by this machine's clock; False for one without an expiry."""
        expires = claims(token).get("exp")
        return isinstance(expires, int | float) and expires <= time.time()
