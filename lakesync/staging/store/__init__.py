"""The protocols of a staging store, the database that pushes are committed to; one module for each kind of caller.

The engine submits a function to the store, which runs it in a transaction and passes it a `Commit`; or it passes a
read-only `View`. A *gateway* is one app's stream of changes; each transaction belongs to one gateway.

`feed` has what a pull reads, `push` what a push writes, `operations` what actions, connectors, erasures and the
configuration need, `pipeline` what pipelines call. Callers declare the smallest protocol that they use. `View`,
`Commit` and `StagingStore` join the protocols for code that opens a store.

`SqliteStore`, `PostgresStore`, `MemoryStore` and `ShardedStore` implement all of them, `RemoteStore` those of
`pipeline`. The suites in `tests/conformance/staging/`, a folder for each module, run over every implementation.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Protocol, TypeVar

from lakesync.staging.store.feed import ClientView, NoticeSource
from lakesync.staging.store.operations import (
    ActionCommit,
    ActionView,
    ConfigCommit,
    ErasureCommit,
    ErasureView,
    FlushJobCommit,
    FlushJobView,
    SharedCursorCommit,
    SharedCursorView,
)
from lakesync.staging.store.pipeline import PipelineStore
from lakesync.staging.store.push import NameView, PushCommit, Replayer

T = TypeVar("T")


class View(ClientView, NameView, ActionView, FlushJobView, SharedCursorView, ErasureView, Protocol):
    """A consistent read of one gateway: every commit up to the arrival `arrival`, and nothing that may be rolled back.

    An arrival is the gateway's own timestamp of a commit.
    """


class Commit(View, PushCommit, ConfigCommit, ActionCommit, FlushJobCommit, SharedCursorCommit, ErasureCommit, Protocol):
    """One transaction: it becomes durable and visible as a whole, or not at all.

    The commits of one gateway run one after another, in arrival order, also across processes. A commit reads its own
    writes. If the submitted function raises, its writes are rolled back; other functions in the same group commit
    are not affected.
    """


class TransactionStore(Protocol):
    """Runs functions in transactions of one gateway."""

    def submit(self, gateway: str, job: Callable[[Commit], T]) -> Future[T]:
        """Run `job` in a transaction. The functions of one gateway run in order of submission.

        Several functions may share one commit (group commit). A function may run again from its start if it was rolled
        back, so it must change nothing but its commit.

        Args:
            gateway: the gateway's id.
            job: a function that is given the open transaction. It runs in a thread of the store and must not wait for
                other submitted functions.

        Returns:
            A future of what `job` returns or raises. It completes when the transaction is durable.

        Raises (in the future):
            NotFoundError: there is no such gateway.
            StagingUnavailableError: the commit failed, or its outcome is unknown; `job` can be submitted again.
        """

    def read(self, gateway: str, job: Callable[[View], T]) -> Future[T]:
        """Run `job` over a consistent read, which contains everything that was acknowledged before the call.

        Args:
            gateway: the gateway's id.
            job: a function that is given the read. It runs in a thread of the store and must not wait for other
                submitted functions.

        Returns:
            A future of what `job` returns or raises.

        Raises (in the future):
            NotFoundError: there is no such gateway.
            StagingUnavailableError: the store does not respond.
        """


class StagingStore(TransactionStore, NoticeSource, PipelineStore, Protocol):
    """A complete store, as the engine opens it."""

    @property
    def is_shared(self) -> bool:
        """Whether other processes may use the store at the same time. If not, this process knows every connection."""

    def open(self, replayer: Replayer) -> None:
        """Apply migrations, and replay the log rows that the last owner process did not apply to its rows.

        Args:
            replayer: replays log rows; normally the engine.

        Raises:
            StagingVersionError: a newer LakeSync wrote the store.
            StagingUnavailableError: the store cannot be reached, or another process owns it.
        """

    def close(self) -> None:
        """Run the functions that were submitted before, and release files and connections."""

    def ensure_gateway(self, gateway: str) -> None:
        """Create a gateway, unless it exists; return when it is durable.

        It gets a new *epoch*, which identifies this copy of the gateway: a rebuild from the lake creates another one.

        Raises:
            StagingUnavailableError: the store does not respond; a repeat is safe.
        """
