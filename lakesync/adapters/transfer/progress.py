"""Progress of copies between adapters (databases and object stores), as JSON in an adapter's mark or in a file.

The other modules of `lakesync.adapters.transfer`, and the pipeline's tasks that call them, save their progress after
each step, so that a later run continues there. Each kind of copy has its own struct for it, `T` here. A *mark* is a
named text in the adapter's own store; only a caller that knows its present value can change it. Where the adapter
stores no marks, the progress is in a file.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

import msgspec

from lakesync.adapters.base import ContentTransform, DatabaseAdapter, MarkStore
from lakesync.adapters.deltas import BatchChecksum, MarkUpdate
from lakesync.model.errors import ConfigurationError, IntegrityError
from lakesync.model.schema import TableSchema

if TYPE_CHECKING:
    import pyarrow as pa

T = TypeVar("T", bound=msgspec.Struct)
"""The struct with the progress."""


def require_marks(adapter: DatabaseAdapter) -> MarkStore:
    """Return an adapter as `MarkStore`.

    Raises:
        ConfigurationError: the adapter does not store marks.
    """
    if not isinstance(adapter, MarkStore):
        raise ConfigurationError(
            f"{type(adapter).__name__} does not store marks and cannot be a destination or a flow's target: use a "
            "database or an object store"
        )
    return adapter


class ProgressStore(Protocol[T]):
    """Stores progress for the next run."""

    def read(self) -> T | None:
        """Return the progress; None if it was never written."""

    def write(self, progress: T) -> None:
        """Replace the progress durably."""


class ProgressInMark(Generic[T]):
    """Stores progress in a mark, where every process that opens the adapter finds it."""

    def __init__(self, adapter: MarkStore, name: str, kind: type[T]) -> None:
        """Choose the mark.

        Args:
            adapter: stores the mark.
            name: the mark's name.
            kind: the type of the progress.
        """
        self._adapter = adapter
        self._name = name
        self._kind = kind
        self._text: str | None = None  # the mark's text as this object read or wrote it last

    def read(self) -> T | None:
        """Return the progress; None if the mark was never written.

        Raises:
            IntegrityError: the mark belongs to another kind of work: two uses share a name.
        """
        self._text = self._adapter.read_mark(self._name)
        if self._text is None:
            return None
        try:
            return msgspec.json.decode(self._text, type=self._kind)
        except msgspec.MsgspecError as error:
            raise IntegrityError(
                f"the mark {self._name!r} belongs to another kind of work ({error}): choose another name"
            ) from error

    def write(self, progress: T) -> None:
        """Replace the value that was read or written last.

        Raises:
            IntegrityError: the mark has another value, because another run has changed it.
        """
        update = self._update(progress)
        self._adapter.move_mark(update)
        self._text = update.value

    def apply(
        self,
        batch_id: str,
        deltas: pa.Table,
        progress: T,
        schemas: Sequence[TableSchema],
        transform: ContentTransform,
    ) -> BatchChecksum:
        """Write deltas and their rows, and the progress after them, see `MarkStore.apply_arrow`.

        Args:
            batch_id: the batch's id.
            deltas: the deltas.
            progress: replaces the value that was read or written last.
            schemas: the destination tables.
            transform: changes row contents before they are written.

        Raises:
            IntegrityError: the mark has another value, because another run has changed it.
            AdapterError: the adapter cannot be reached; retry.
        """
        update = self._update(progress)
        stored = self._adapter.apply_arrow(batch_id, deltas, update, schemas, transform)
        self._text = update.value
        return stored

    def _update(self, progress: T) -> MarkUpdate:
        """Return the change of the mark from its last known value."""
        return MarkUpdate(self._name, self._text, msgspec.json.encode(progress).decode())


class ProgressInFile(Generic[T]):
    """Stores progress in a local file, durably."""

    def __init__(self, path: Path, kind: type[T]) -> None:
        """Choose the file.

        Args:
            path: created with its folder on the first write.
            kind: the type of the progress.
        """
        self.path = path
        self._kind = kind

    def read(self) -> T | None:
        """Return the progress; None if the file does not exist.

        Raises:
            ConfigurationError: the file has another content, or is damaged.
        """
        try:
            return msgspec.json.decode(self.path.read_bytes(), type=self._kind)
        except FileNotFoundError:
            return None
        except msgspec.MsgspecError as error:
            raise ConfigurationError(
                f"{self.path} does not contain progress of this kind: {error}; delete the file"
            ) from error

    def write(self, progress: T) -> None:
        """Replace the file atomically."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        scratch = self.path.with_suffix(".new")
        with scratch.open("wb") as file:
            file.write(msgspec.json.encode(progress))
            file.flush()
            os.fsync(file.fileno())
        scratch.replace(self.path)
