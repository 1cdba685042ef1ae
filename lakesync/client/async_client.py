"""The client for asyncio: it runs the blocking client in one worker thread. `lakesync.client.open_async` returns it.

Methods have the arguments, results and exceptions of the same methods of `Client` and `Table`. If several asyncio tasks
call methods, the calls run one after the other.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial, wraps
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

from lakesync.client.client import Client
from lakesync.client.factory import open_client
from lakesync.client.sqlite.tables import Row, Table
from lakesync.client.status import Event, SyncStatus
from lakesync.client.sync.sync_session import CLOSE_SECONDS
from lakesync.client.transports.tokens import Token
from lakesync.model.errors import ConfigurationError

P = ParamSpec("P")
T = TypeVar("T")


def _on_client(
    method: Callable[Concatenate[Client, P], T],
) -> Callable[Concatenate[AsyncClient, P], Coroutine[Any, Any, T]]:
    """Return a method of `AsyncClient` that calls this method of `Client` in the worker thread."""

    @wraps(method)
    async def call(self: AsyncClient, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self.run(lambda db: method(db, *args, **kwargs))

    return call


def _on_table(
    method: Callable[Concatenate[Table, P], T],
) -> Callable[Concatenate[AsyncTable, P], Coroutine[Any, Any, T]]:
    """Return a method of `AsyncTable` that calls this method of `Table` in the worker thread."""

    @wraps(method)
    async def call(self: AsyncTable, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._client.run(lambda db: method(db[self._name], *args, **kwargs))

    return call


class AsyncTable:
    """A synced table: `db["todos"]`, with methods to await."""

    def __init__(self, client: AsyncClient, name: str) -> None:
        """Name a table of a client; the table is looked up when a method is called."""
        self._client = client
        self._name = name

    insert = _on_table(Table.insert)
    update = _on_table(Table.update)
    upsert = _on_table(Table.upsert)
    delete = _on_table(Table.delete)
    get = _on_table(Table.get)
    rows = _on_table(Table.rows)


class AsyncClient:
    """The client that `open_async` returns. Several tasks may share it."""

    def __init__(self, open_blocking: Callable[[], Client]) -> None:
        """Create a closed client; `async with` opens it.

        Args:
            open_blocking: opens the blocking client; it is called in the worker thread.
        """
        self._open_blocking = open_blocking
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="lakesync-app")
        self._client: Client | None = None

    async def run(self, function: Callable[[Client], T]) -> T:
        """Call a function with the blocking client in its thread: `await db.run(lambda db: db.to_pandas("todos"))`.

        A transaction is one such call: `await db.run(transfer)`, if `transfer(db)` contains `with db.transaction():`.

        If the awaiting task is cancelled, a call that has not begun is never made, and a synchronisation ends before
        its next request. Any other call runs to its end.

        Args:
            function: the function; its result is returned, and its exception raised.

        Raises:
            ConfigurationError: the client is not open.
            RuntimeError: the function raised StopIteration, which no task can receive.
        """
        client = self._opened()
        call = self._thread.submit(_call, function, client)
        try:
            return await asyncio.wrap_future(call)
        except asyncio.CancelledError:
            if not call.cancel() and not call.done():  # it is running, and not the call of another task
                client.coordinator.cancel()
            raise

    @property
    def client_id(self) -> str:
        """This client's id."""
        return self._opened().client_id

    def __getitem__(self, table: str) -> AsyncTable:
        """Return a synced table."""
        return AsyncTable(self, table)

    sync = _on_client(Client.sync)
    query = _on_client(Client.query)
    pending = _on_client(Client.pending)
    verify = _on_client(Client.verify)
    retry = _on_client(Client.retry)
    drop = _on_client(Client.drop)
    history = _on_client(Client.history)
    execute_action = _on_client(Client.execute_action)
    action = _on_client(Client.action)

    async def execute(self, sql: str, params: Any = ()) -> int:
        """Run a statement in a transaction of its own; return the number of changed rows.

        Args:
            sql: one statement.
            params: values for its placeholders.
        """
        return await self.run(lambda db: _execute(db, sql, params))

    async def set_token(self, token: Token) -> None:
        """See `Client.set_token`. It does not wait for a call in progress, which may wait for the earlier token."""
        self._opened().set_token(token)

    async def status(self) -> SyncStatus:
        """See `Client.status`."""
        return await self.run(lambda db: db.status)

    async def on(self, event: Event, listener: Callable[..., Any]) -> None:
        """Call a function whenever an event occurs, in the event loop that awaits this call.

        Args:
            event: the event's name.
            listener: a plain function, called with the event's arguments, which `lakesync.client.status.Event` lists.
        """
        loop = asyncio.get_running_loop()
        await self.run(lambda db: db.on(event, lambda *args: loop.call_soon_threadsafe(listener, *args)))

    async def watch(self, sql: str, params: Any = ()) -> AsyncIterator[list[Row]]:
        """See `Client.watch`."""
        watch = await self.run(lambda db: db.watch(sql, params))
        try:
            while self._client is not None:
                rows = await self.run(lambda _: watch.next(timeout=0))
                if rows is not None:
                    yield rows
                else:
                    await asyncio.sleep(watch.interval)
        finally:
            if self._client is not None:
                await self.run(lambda _: watch.close())

    async def close(self) -> None:
        """See `Client.close`. A call in progress is cancelled after half a second.

        If the awaiting task is cancelled, the call in progress is too, and the client is closed in its thread.
        """
        if self._client is None:
            return
        client, self._client = self._client, None
        closing = asyncio.wrap_future(self._thread.submit(client.close))
        self._thread.shutdown(wait=False)
        try:
            while not (await asyncio.wait((closing,), timeout=CLOSE_SECONDS))[0]:  # a call of another task is running
                client.coordinator.cancel()
        except asyncio.CancelledError:
            client.coordinator.cancel()
            raise
        await closing

    async def __aenter__(self) -> Self:
        opening = self._thread.submit(self._open_blocking)
        try:
            self._client = await asyncio.wrap_future(opening)
        except BaseException:
            self._thread.submit(_close_opened, opening)  # the client may be opened although the task was cancelled
            self._thread.shutdown(wait=False)
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def _opened(self) -> Client:
        """Return the blocking client; raise ConfigurationError if it is not open."""
        if self._client is None:
            raise ConfigurationError("the client is not open: use `async with`")
        return self._client


def _with_signature_of(
    open_function: Callable[P, Client],
) -> Callable[[Callable[..., AsyncClient]], Callable[P, AsyncClient]]:
    """Give the decorated function the arguments of another one, for type checkers and for `help`."""

    def decorate(function: Callable[..., AsyncClient]) -> Callable[P, AsyncClient]:
        signature = inspect.signature(open_function).replace(return_annotation="AsyncClient")
        function.__signature__ = signature  # type: ignore[attr-defined]
        return function

    return decorate


@_with_signature_of(open_client)
def open_async(*arguments: Any, **options: Any) -> AsyncClient:
    """Return a client for asyncio, to be used with `async with`. The arguments are those of `lakesync.open`."""
    return AsyncClient(partial(open_client, *arguments, **options))


def _call(function: Callable[[Client], T], client: Client) -> T:
    """Call a function with the blocking client, in the worker thread."""
    try:
        return function(client)
    except StopIteration as error:  # a future with this exception would never end
        raise RuntimeError("the function raised StopIteration") from error


def _close_opened(opening: Future[Client]) -> None:
    """Close the client that was opened for a task that does not use it, in the worker thread."""
    if not opening.cancelled() and opening.exception() is None:
        opening.result().close()


def _execute(db: Client, sql: str, params: Any) -> int:
    """Run a statement in a transaction, in the worker thread."""
    with db.transaction() as conn:
        return conn.execute(sql, params).rowcount
