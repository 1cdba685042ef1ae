"""A staging store whose jobs and answers wait until a test releases them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator
from concurrent.futures import Future
from functools import partial
from typing import Any, NamedTuple, TypeVar, cast

from lakesync.model.errors import StagingUnavailableError
from lakesync.staging.head import MAIN_SHARD
from lakesync.staging.memory import MemoryStore
from lakesync.staging.notices import Listener, Notice
from lakesync.staging.records import ClientRecord
from lakesync.staging.sharded import ShardedStore
from lakesync.staging.shards import ShardMap
from lakesync.staging.store import View

T = TypeVar("T")

_OWN = ("scan", "subscribe")
"""Jobs that a server submits for its connections, and repeats if they fail."""


class Event(NamedTuple):
    """A possible next event."""

    name: str
    happen: Callable[[], object]


class _Work(NamedTuple):
    """A commit or a read of the store."""

    name: str
    writes: bool
    run: Callable[[], Future[Any]]
    answer: Future[Any]


class _Done(NamedTuple):
    """A job that has run and whose answer is not delivered yet."""

    name: str
    answer: Future[Any]
    ended: Future[Any]


class _Snapshot:
    """A view that may show commits before their notices are delivered, as on Postgres."""

    def __init__(self, view: View) -> None:
        self._view = view

    def __getattr__(self, name: str) -> Any:
        return getattr(self._view, name)

    def unnotified(self, buckets: Iterable[str], after: int) -> Collection[str]:
        """Report that anything may have changed."""
        return [bucket for bucket in buckets if self._view.changed_after((bucket,), after)]

    def unnotified_clients(self, client_ids: Collection[str]) -> list[ClientRecord]:
        """Every client."""
        return [record for name in client_ids if (record := self._view.client(name)) is not None]


class HeldStore:
    """A store whose jobs wait to run, and whose answers wait for delivery."""

    def __init__(self, wall: Callable[[], int], shard: str = MAIN_SHARD) -> None:
        self._store = MemoryStore(wall, shard=shard)
        self.held = False
        self.loose = False
        """If true, reads run and end in any order and notices are late, as on Postgres; otherwise as on SQLite."""
        self.away = False
        """If true, a job that a server submits for its connections may fail, as if the store were unreachable."""
        self.waiting: list[_Work] = []
        self.done: list[_Done] = []
        self._listeners: list[tuple[Listener, deque[Notice]]] = []
        self._store.watch(self._note)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    @property
    def shared(self) -> bool:
        """Whether servers may be separate processes."""
        return self.loose

    def submit(self, gateway: str, work: Callable[[Any], T]) -> Future[T]:
        """As the store's; jobs run in the order of submission."""
        return self._take(work, True, lambda: self._store.submit(gateway, work))

    def read(self, gateway: str, work: Callable[[Any], T]) -> Future[T]:
        """As the store's method."""
        return self._take(work, False, lambda: self._store.read(gateway, self._reading(work)))

    def watch(self, listener: Listener) -> Callable[[], None]:
        """As the store's method, with one listener for each server."""
        entry: tuple[Listener, deque[Notice]] = (listener, deque())
        self._listeners.append(entry)
        return lambda: self._listeners.remove(entry)

    def lose_notices(self, gateway: str) -> None:
        """Lose the notices in transit, as with a lost connection to Postgres, and report the loss."""
        for _, notices in self._listeners:
            notices.clear()
            notices.append(Notice(gateway, None, after_loss=True))

    def events(self) -> Iterator[Event]:
        """The store's possible next events."""
        for place, each in enumerate(self.done):
            yield Event(f"tell {each.name}", partial(self._tell, place))
            if not self.loose:
                break
        first: set[bool] = set()
        for work in self.waiting:
            if work.writes not in first or (self.loose and not work.writes):
                first.add(work.writes)
                yield Event(f"run {work.name}", partial(self._run, work))
            if self.away and work.name in _OWN:
                yield Event(f"lose {work.name}", partial(self._lose, work))
        for place, (listener, notices) in enumerate(self._listeners):
            if notices:
                yield Event(f"notice {place}", partial(_pass_on, listener, notices))

    def _take(self, work: Callable[[Any], T], writes: bool, run: Callable[[], Future[T]]) -> Future[T]:
        if not self.held:
            return run()
        answer: Future[T] = Future()
        name = work.__qualname__.partition(".<locals>")[0].rpartition(".")[2].removeprefix("submit").strip("_")
        self.waiting.append(_Work(name, writes, run, answer))
        return answer

    def _reading(self, work: Callable[[Any], T]) -> Callable[[Any], T]:
        return (lambda view: work(_Snapshot(view))) if self.loose else work

    def _run(self, work: _Work) -> None:
        self.waiting.remove(work)
        if not work.answer.set_running_or_notify_cancel():  # as in the store: the caller has cancelled
            return
        if not work.writes and not self.loose:
            for listener, notices in self._listeners:
                while notices:
                    listener(notices.popleft())
        ended = work.run()
        ended.exception()
        self._store.gateways()  # a read behind it: its notices are delivered
        self.done.append(_Done(work.name, work.answer, ended))

    def _lose(self, work: _Work) -> None:
        self.waiting.remove(work)
        work.answer.set_exception(StagingUnavailableError("the connection was lost"))

    def _tell(self, place: int) -> None:
        _, answer, ended = self.done.pop(place)
        error = ended.exception()
        if error is not None:
            answer.set_exception(error)
        else:
            answer.set_result(ended.result())

    def _note(self, notice: Notice) -> None:
        for _, notices in self._listeners:
            notices.append(notice)


class HeldShards(ShardedStore):
    """The stores of shards, each of which waits separately."""

    def __init__(self, shards: ShardMap, wall: Callable[[], int]) -> None:
        super().__init__(shards, {name: cast("Any", HeldStore(wall, name)) for name in shards.names})

    @property
    def _held(self) -> list[HeldStore]:
        return [cast("HeldStore", store) for store in self.stores.values()]

    @property
    def held(self) -> bool:
        """As `HeldStore.held`, for all shards."""
        return self._held[0].held

    @held.setter
    def held(self, held: bool) -> None:
        for store in self._held:
            store.held = held

    @property
    def loose(self) -> bool:
        """As `HeldStore.loose`, for all shards."""
        return self._held[0].loose

    @loose.setter
    def loose(self, loose: bool) -> None:
        for store in self._held:
            store.loose = loose

    @property
    def away(self) -> bool:
        """As `HeldStore.away`, for all shards."""
        return self._held[0].away

    @away.setter
    def away(self, away: bool) -> None:
        for store in self._held:
            store.away = away

    @property
    def waiting(self) -> list[Any]:
        """The jobs of any shard that wait to run."""
        return [work for store in self._held for work in store.waiting]

    @property
    def done(self) -> list[Any]:
        """Return the jobs of any shard that have run and whose answers are not delivered."""
        return [work for store in self._held for work in store.done]

    def events(self) -> Iterator[Event]:
        """The stores' possible next events."""
        for store in self._held:
            yield from store.events()


def _pass_on(listener: Listener, notices: deque[Notice]) -> None:
    listener(notices.popleft())
