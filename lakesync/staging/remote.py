"""`PipelineStore` over HTTP, for the processes of the data pipeline.

Only the gateway may open its SQLite store, so other processes call its methods through the gateway. A call of a method
is a POST with the arguments as JSON. `RemoteStore` sends it, and the gateway's internal route passes it to `dispatch`,
which calls the same method of the gateway's store. `staging.store.pipeline` says what each method promises and defines
the terms.
"""

from __future__ import annotations

import inspect
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NamedTuple, TypeVar, get_type_hints

import msgspec
import requests
import stamina

from lakesync.model.errors import LakeSyncError, NotFoundError, StagingUnavailableError, TransientError, ValidationError
from lakesync.model.types import RowDelta, StoredConnector
from lakesync.staging.head import MAIN_SHARD
from lakesync.staging.records import Backlog, Batch, Checkpoint, CutPoint, Erasure, GatewayConfig, LedgerDay, LogSource
from lakesync.staging.store.pipeline import PipelineStore
from lakesync.wire.http_auth import BearerAuth

T = TypeVar("T")

_NO_RESPONSE = (requests.ConnectionError, requests.Timeout, requests.exceptions.ChunkedEncodingError)
"""Errors of a request without a complete response. The last is that of a connection that ends within the body."""
_CONNECT_SECONDS = 5.0
"""Seconds to wait for a connection."""
_MARGIN_SECONDS = 5.0
"""Seconds beyond the gateway's own limit to wait for a response, so that the gateway reports its timeout first."""
_EXCERPT_CHARACTERS = 200
"""Characters of an unexpected response that an error message contains."""


class Method(NamedTuple):
    """The message types of one method of `PipelineStore`."""

    arguments: type[msgspec.Struct]
    """A struct with a field for each parameter."""
    decode: Callable[[bytes], msgspec.Struct]
    """Decodes the arguments. It is created once, by one thread, because creating msgspec's decoders in several threads
    may crash (see `lakesync.staging.table_values`)."""
    result_type: Any
    """The type of the return value."""


@cache
def methods() -> dict[str, Method]:
    """Return every method of `PipelineStore`, by name."""
    return {name: _method_of(name) for name in dir(PipelineStore) if not name.startswith("_")}


def _method_of(name: str) -> Method:
    """Return the message types of a method, from its signature in `PipelineStore`."""
    function = getattr(PipelineStore, name)
    hints = get_type_hints(function)
    parameters = list(inspect.signature(function).parameters.values())[1:]
    fields = [
        (each.name, hints[each.name], msgspec.NODEFAULT if each.default is each.empty else each.default)
        for each in parameters
    ]
    arguments = msgspec.defstruct(name, fields, frozen=True, forbid_unknown_fields=True)
    return Method(arguments, msgspec.json.Decoder(arguments).decode, hints["return"])


def dispatch(store: PipelineStore, method: str, body: bytes) -> bytes:
    """Call a method of `store` by name, and return its result as JSON.

    Args:
        store: the gateway's store.
        method: the method's name.
        body: the method's arguments by name, as a JSON object; empty for none.

    Raises:
        NotFoundError: `PipelineStore` has no such method.
        ValidationError: the arguments do not fit the method.
        LakeSyncError: an error that the method raised.
    """
    known = methods().get(method)
    if known is None:
        raise NotFoundError(f"staging has no method {method!r}: it has {', '.join(sorted(methods()))}")
    try:
        arguments = known.decode(body or b"{}")
    except msgspec.MsgspecError as exc:
        raise ValidationError(f"the arguments do not fit staging's {method}: {exc}") from None
    return msgspec.json.encode(getattr(store, method)(**msgspec.structs.asdict(arguments)))


class _ErrorBody(msgspec.Struct, frozen=True):
    """The body of an error response."""

    error: str
    code: str


class RemoteStore:
    """The store of a gateway process, through its internal route.

    All methods can be repeated. So a call without a complete response, or that the gateway did not complete in time, is
    repeated at least once, and then until `retry_seconds` is over.

    Raises (from every method):
        StagingUnavailableError: the gateway or its store was not reached within `retry_seconds` seconds; or, however
            long that took, within two calls.
        LakeSyncError: the error that the store raised, with the same class.
    """

    def __init__(
        self, base_url: str, service_token: str, *, timeout: float = 30.0, retry_seconds: float = 30.0
    ) -> None:
        """Create the HTTP session; nothing is sent yet.

        Args:
            base_url: the gateway's address, `http://HOST:PORT`.
            service_token: the token for the gateway's internal routes.
            timeout: seconds in which the gateway responds, the setting `limits.request_timeout_seconds`.
            retry_seconds: seconds during which a failed call is retried.
        """
        self._root = base_url.rstrip("/") + "/internal/staging/"
        self._timeout = timeout + _MARGIN_SECONDS
        self._retry_seconds = retry_seconds
        self._session = requests.Session()
        self._session.auth = BearerAuth(service_token)
        self._session.headers["Content-Type"] = "application/json"

    def close(self) -> None:
        """Close the connections."""
        self._session.close()

    def gateways(self) -> list[str]:
        """Return the ids of all gateways."""
        return self._call("gateways", list[str])

    def backlog(self) -> list[Backlog]:
        """Return each shard's backlog."""
        return self._call("backlog", list[Backlog])

    def gateway_config(self, gateway: str) -> GatewayConfig:
        """Return a gateway's schemas and rules."""
        return self._call("gateway_config", GatewayConfig, gateway=gateway)

    def connectors(self, gateway: str) -> list[StoredConnector]:
        """Return the connectors that were registered at run time, ordered by name."""
        return self._call("connectors", list[StoredConnector], gateway=gateway)

    def plan(
        self, gateway: str, shard: str, max_deltas: int, through: int | None = None, since: int | None = None
    ) -> Batch | None:
        """Return the open batch, or a new one; see `PipelineStore.plan`."""
        return self._call_optional(
            "plan", Batch, gateway=gateway, shard=shard, max_deltas=max_deltas, through=through, since=since
        )

    def confirm(self, batch_id: str, deltas: int, id_sum: int, snapshot_id: int | None = None) -> None:
        """Record that the lake was read back and contains a batch; see `PipelineStore.confirm`."""
        self._call_optional("confirm", bool, batch_id=batch_id, deltas=deltas, id_sum=id_sum, snapshot_id=snapshot_id)

    def trim(self, gateway: str, shard: str) -> int:
        """Delete the log bodies of confirmed batches; return the freed bytes. See `PipelineStore.trim`."""
        return self._call("trim", int, gateway=gateway, shard=shard)

    def ledger(self, gateway: str) -> list[LedgerDay]:
        """Return counts and id sums of a gateway's deltas by UTC day of arrival; see `PipelineStore.ledger`."""
        return self._call("ledger", list[LedgerDay], gateway=gateway)

    def request_flush(self, gateway: str) -> None:
        """Record that a flush was requested; see `PipelineStore.request_flush`."""
        self._call_optional("request_flush", bool, gateway=gateway)

    def cut_point(self, gateway: str) -> CutPoint:
        """Return the point at which the next checkpoint can be made; see `PipelineStore.cut_point`."""
        return self._call("cut_point", CutPoint, gateway=gateway)

    def publish_checkpoint(self, checkpoint: Checkpoint) -> bool:
        """Publish a checkpoint; return False if this epoch has one at the same or a later arrival."""
        return self._call("publish_checkpoint", bool, checkpoint=checkpoint)

    def newest_checkpoint(self, gateway: str) -> Checkpoint | None:
        """Return the newest published checkpoint of the store's epoch; None before its first one."""
        return self._call_optional("newest_checkpoint", Checkpoint, gateway=gateway)

    def marks(self) -> dict[str, str]:
        """Return how far each part of the pipeline is, by name; see `PipelineStore.marks`."""
        return self._call("marks", dict[str, str])

    def put_mark(self, name: str, body: str) -> None:
        """Store how far a part of the pipeline is; see `PipelineStore.put_mark`."""
        self._call_optional("put_mark", bool, name=name, body=body)

    def erase_row(self, gateway: str, table: str, row_id: str) -> Erasure:
        """Erase all values that a row ever had; see `PipelineStore.erase_row`."""
        return self._call("erase_row", Erasure, gateway=gateway, table=table, row_id=row_id)

    def erase_client(self, gateway: str, client_id: str) -> Erasure:
        """Erase everything that a client ever wrote; see `PipelineStore.erase_client`."""
        return self._call("erase_client", Erasure, gateway=gateway, client_id=client_id)

    def erasures(self, gateway: str) -> list[Erasure]:
        """Return every erasure, in order; see `PipelineStore.erasures`."""
        return self._call("erasures", list[Erasure], gateway=gateway)

    def restore(self, gateway: str, seq: int, deltas: Sequence[RowDelta]) -> Erasure:
        """Merge older deltas that the erased ones had overwritten; see `PipelineStore.restore`."""
        return self._call("restore", Erasure, gateway=gateway, seq=seq, deltas=deltas)

    def confirm_erasure(self, gateway: str, seq: int) -> None:
        """Record that the lake has executed an erasure; see `PipelineStore.confirm_erasure`."""
        self._call_optional("confirm_erasure", bool, gateway=gateway, seq=seq)

    def log_source(self, shard: str = MAIN_SHARD) -> LogSource:
        """Return the JDBC address from which tasks of Spark read a shard's log."""
        return self._call("log_source", LogSource, shard=shard)

    def _call(self, method: str, result_type: type[T], **arguments: Any) -> T:
        """Call a method, and return its result, decoded as `result_type`."""
        return msgspec.json.decode(self._request(method, arguments), type=result_type)

    def _call_optional(self, method: str, result_type: type[T], **arguments: Any) -> T | None:
        """Like `_call`, for a method that may return None."""
        return msgspec.json.decode(self._request(method, arguments), type=result_type | None)

    def _request(self, method: str, arguments: dict[str, Any]) -> bytes:
        """Send a call, and return the body of the response.

        Retries while the store cannot be reached, for `retry_seconds` seconds, and at least once.
        """
        body = msgspec.json.encode(arguments)
        deadline, attempts = time.monotonic() + self._retry_seconds, 0

        def may_repeat(error: Exception) -> bool:
            return isinstance(error, StagingUnavailableError) and (attempts < 2 or time.monotonic() < deadline)

        for attempt in stamina.retry_context(on=may_repeat, attempts=None, timeout=None):
            with attempt:
                attempts += 1
                return self._post(method, body)
        raise AssertionError("stamina raises when it gives up")

    def _post(self, method: str, body: bytes) -> bytes:
        """Send one request; raises StagingUnavailableError without a complete response, or the reported error."""
        url = self._root + method
        try:
            response = self._session.post(url, data=body, timeout=(_CONNECT_SECONDS, self._timeout))
        except _NO_RESPONSE as exc:
            raise StagingUnavailableError(f"the gateway did not answer at {url} ({exc}): see whether it runs") from exc
        if response.ok:
            return response.content
        raise error_of(response)


def error_of(response: requests.Response) -> LakeSyncError:
    """Return the error that a response reports, with the class of the error that the store raised."""
    try:
        body = msgspec.json.decode(response.content, type=_ErrorBody)
    except msgspec.MsgspecError:
        shown = response.text[:_EXCERPT_CHARACTERS]
        return StagingUnavailableError(f"{response.url} answered {response.status_code}, not as a gateway: {shown!r}")
    kind = _classes().get(body.code, LakeSyncError)
    if not issubclass(kind, TransientError):
        return kind(body.error)
    after = response.headers.get("Retry-After", "")
    return kind(body.error, retry_after=float(after) if after.isdecimal() else None)


def _classes() -> dict[str, type[LakeSyncError]]:
    """Return the error class of each error code.

    Of several classes with one code, it is the one nearest to `LakeSyncError`, which has the code's general meaning.
    """
    by_code: dict[str, type[LakeSyncError]] = {}
    waiting: deque[type[LakeSyncError]] = deque([LakeSyncError])
    while waiting:
        kind = waiting.popleft()
        by_code.setdefault(kind.code, kind)
        waiting.extend(kind.__subclasses__())
    return by_code
