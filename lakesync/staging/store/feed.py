"""Protocols for reads of a gateway: pages of the feed, and the record and rules that a client's request needs.

`lakesync.feed` computes pages from a `FeedView`. The engine reads clients, rules and subscriptions from a `ClientView`,
and passes on the notices of a `NoticeSource`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Protocol

from lakesync.model.types import RowKey
from lakesync.staging.encoded_feed import FeedRange, FullRow, Reader
from lakesync.staging.notices import Listener
from lakesync.staging.records import ClientRecord, Entry, GatewayConfig, Reindex, StoredRow


class GatewayView(Protocol):
    """A gateway, with its configuration."""

    @property
    def gateway(self) -> str:
        """The gateway's id."""

    @property
    def epoch(self) -> int:
        """The store's epoch. A restored or rebuilt store has another one."""

    @property
    def config(self) -> GatewayConfig:
        """The active schemas and rules of this read."""


class FeedView(Protocol):
    """Rows and feed entries, as a page of the feed is read from them."""

    @property
    def arrival(self) -> int:
        """The newest safe arrival: no commit up to it becomes visible later."""

    def rows(self, keys: Collection[RowKey]) -> dict[RowKey, StoredRow]:
        """Return the stored rows among `keys`; rows that were never written are absent.

        Copy a row before changing it.
        """

    def entries_after(self, buckets: Collection[str], since: int, limit: int) -> list[Entry]:
        """Return entries with `since < changed <= arrival`, ordered by `changed`.

        The cost depends on the number of results and buckets only.

        Args:
            buckets: keys; an entry is under one of them.
            since: arrival.
            limit: the most entries.
        """

    def full_rows(self, bucket: str, since: int, limit: int) -> list[FullRow]:
        """Return entries of one bucket like `entries_after`, each with its row encoded as it is sent."""

    def read_range(
        self, buckets: Sequence[str], since: int, until: int, limit: int, reader: Reader
    ) -> FeedRange | None:
        """Return about `limit` entries with `since < changed <= until`, in order, as one encoded range.

        Args:
            buckets: the entries are under these keys or `reader.own`; the reader may see what is inside any of these
                keys.
            since: arrival.
            until: arrival.
            limit: about how many entries.
            reader: the client.

        Returns:
            None if there is no entry, if any row is neither one that the reader lacks entirely nor one that it needs
            nothing of, or if the store cannot answer quickly.
        """

    def entries_of(self, keys: Collection[RowKey], buckets: Collection[str]) -> list[Entry]:
        """Return every entry of these rows under these buckets, in any order."""

    def changed_after(self, buckets: Collection[str], since: int) -> bool:
        """Return whether any entry under `buckets` has `changed > since`."""


class ClientView(GatewayView, FeedView, Protocol):
    """Everything that the engine reads to answer one client: the feed, the client's record, and the active rules."""

    def buckets(self, prefix: str) -> list[str]:
        """Return the bucket keys in use that start with `prefix`."""

    def reindexing(self) -> Reindex | None:
        """Return the position of the latest re-index; None if rules never changed."""

    def client(self, client_id: str) -> ClientRecord | None:
        """Return a client's record; None if the client was never seen or its record was deleted."""

    def unnotified(self, buckets: Collection[str], since: int) -> Collection[str]:
        """Return the changed ones of `buckets` whose notice may not have been delivered yet.

        A bucket is changed if it has an entry with `changed > since`. A store that notifies its listeners of each
        commit before it shows it to readers returns nothing.
        """


class NoticeSource(Protocol):
    """Notifies gateway processes of new arrivals."""

    def watch(self, listener: Listener) -> Callable[[], None]:
        """Call `listener` when a gateway has new visible arrivals, whichever process committed them.

        Notices are never ahead of what `read` shows. They may be combined, may name more bucket keys than changed, and
        come from a thread of the store: a listener must return quickly and must not wait for the store. After a lost
        connection, every gateway gets a notice.

        Returns:
            A function that removes the listener; a call in progress may still arrive.
        """
