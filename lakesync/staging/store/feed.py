"""Protocols of a staging store for reads of a gateway: pages of the feed, and what a client's request needs.

`lakesync.feed` computes pages from a `FeedView`. The engine reads clients and rules from a `ClientView`, and passes on
the notices of a `NoticeSource`.

- A *gateway* is one app's stream of changes. An *arrival* is its own timestamp of a commit.
- A *bucket key* names a bucket of the sync rules with the claims (fields of a token) that may see it. A row is *inside*
  the buckets whose keys it has.
- A *feed entry* is a row's history under one bucket key: when it joined the bucket, left it, and last changed in it
  (`changed`). The *feed* of a key has its entries in order of `changed`.
- A *notice* informs this process that a commit, perhaps of another process, changed rows under some bucket keys.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Protocol

from lakesync.model.types import RowKey
from lakesync.staging.encoded_feed import FeedRange, Reader
from lakesync.staging.notices import Listener
from lakesync.staging.records import ClientRecord, Entry, GatewayConfig, Reindex, StoredRow


class GatewayView(Protocol):
    """A gateway, with its configuration."""

    @property
    def gateway(self) -> str:
        """The gateway's id."""

    @property
    def shard(self) -> str:
        """The name of the shard (a store for some tables) that this store serves; `main` without sharding."""

    @property
    def epoch(self) -> int:
        """The epoch of the gateway in this store.

        It is the time when the gateway was created there. A restore or a rebuild increases it, so that records and
        checkpoints from before are recognised.
        """

    @property
    def config(self) -> GatewayConfig:
        """The active schemas and rules, as this read or commit sees them."""


class FeedView(Protocol):
    """Rows and feed entries, as a page of the feed is read from them."""

    @property
    def arrival(self) -> int:
        """The newest arrival (the gateway's HLC timestamp of a commit): no commit up to it becomes visible later."""

    def rows(self, keys: Collection[RowKey]) -> dict[RowKey, StoredRow]:
        """Return the stored rows among `keys`; rows that were never written are absent.

        Copy a row before changing it, because the store may keep the object in memory.
        """

    def entries_after(self, buckets: Collection[str], after: int, limit: int) -> list[Entry]:
        """Return entries with `after < changed <= arrival`, ordered by `changed`.

        The cost depends on the number of results and buckets only.

        Args:
            buckets: the bucket keys whose entries are returned.
            after: the arrival after which entries changed.
            limit: the most entries to return.
        """

    def read_range(
        self, buckets: Sequence[str], after: int, up_to: int, limit: int, reader: Reader
    ) -> FeedRange | None:
        """Return about `limit` entries with `after < changed <= up_to`, in order, as one encoded range.

        This is a fast path for clients, such as new ones, that need each row either completely or not at all.

        Args:
            buckets: the bucket keys whose entries are read; the reader may see every row inside them. The entries of
                `reader.own` are read too: it is a key for changes that concern this client alone.
            after: the arrival after which entries changed.
            up_to: the arrival up to which entries changed.
            limit: about how many entries to read.
            reader: the client, and what it has.

        Returns:
            The range; None if there is no entry, if the store cannot read it quickly, or if the reader needs only a
            part of some row, for example because it wrote one of the row's columns itself.
        """

    def entries_of(self, keys: Collection[RowKey], buckets: Collection[str]) -> list[Entry]:
        """Return every entry of these rows under these bucket keys, in any order.

        Args:
            keys: the rows' keys.
            buckets: the bucket keys.
        """

    def changed_after(self, buckets: Collection[str], after: int) -> bool:
        """Return whether any entry under these bucket keys has `changed > after`."""


class ClientView(GatewayView, FeedView, Protocol):
    """Everything that the engine reads to answer one client: the feed, the client's record, and the active rules."""

    def buckets(self, prefix: str) -> list[str]:
        """Return the bucket keys that any entry has and that start with `prefix`."""

    def reindexing(self) -> Reindex | None:
        """Return the position of the latest re-index (the update of all rows' bucket keys after a change of rules).

        None if rules never changed.
        """

    def client(self, client_id: str) -> ClientRecord | None:
        """Return a client's record; None if the client was never seen or its record was deleted."""

    def unnotified(self, buckets: Iterable[str], after: int) -> Collection[str]:
        """Return those of the bucket keys that changed later than `after`, and whose notice may not be delivered yet.

        A broadcast must not skip such a change: this read shows it, but no notice has said which clients it concerns.
        A store returns none if it notifies its listeners of each commit before readers see the commit.

        Args:
            buckets: the bucket keys in question.
            after: an arrival.
        """

    def unnotified_clients(self, client_ids: Collection[str]) -> list[ClientRecord]:
        """Return the records of these clients that may have changed, and whose notice may not be delivered yet.

        They may show that a client has another connection, of which this process does not know yet. A store returns
        none if it notifies its listeners of each commit before readers see the commit.
        """


class NoticeSource(Protocol):
    """Notifies gateway processes of new arrivals."""

    def watch(self, listener: Listener) -> Callable[[], None]:
        """Call `listener` when commits of a gateway have become visible, whichever process made them.

        A notice never comes before the store's `read` shows the commit. Notices may be combined, and may name more
        bucket keys than changed. After a lost connection, every gateway gets a notice. The listener is called in a
        thread of the store: it must return quickly, and must not wait for the store.

        Returns:
            A function that removes the listener; a call that has begun may still end afterwards.
        """
