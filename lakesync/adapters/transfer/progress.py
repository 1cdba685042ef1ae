"""Progress of copies between adapters (databases and object stores), as JSON in an adapter's mark or in a file.

The other modules of `lakesync.adapters.transfer`, and the pipeline's tasks that call them, save their progress after
each step, so that a later run continues there. Progress is a struct of their own. A *mark* is a named text in the
adapter's own store; only a caller that knows its present value can change it. Where the adapter stores no marks, the
progress is in a file.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Generic, Protocol, TypeVar

import msgspec

from lakesync.adapters.base import MarkStore
from lakesync.adapters.deltas import MarkUpdate
from lakesync.model.errors import ConfigurationError, IntegrityError

T = TypeVar("T", bound=msgspec.Struct)


def decode_progress(text: str | None, kind: type[T], name: str) -> T | None:
    """Decode the value of a mark. None, which is the value of a mark that was never written, stays None.

    Args:
        text: the mark's value.
        kind: the type of the progress, for example `FollowerProgress`.
        name: the mark's name, for the message.

    Raises:
        IntegrityError: the mark belongs to another kind of work: two uses share a name.
    """
    if text is None:
        return None
    try:
        return msgspec.json.decode(text, type=kind)
    except msgspec.MsgspecError as error:
        raise IntegrityError(
            f"the mark {name!r} belongs to another kind of work ({error}): choose another name"
        ) from error


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
        """Return the progress.

        Raises:
            IntegrityError: the mark belongs to another kind of work: two uses share a name.
        """
        self._text = self._adapter.read_mark(self._name)
        return decode_progress(self._text, self._kind, self._name)

    def write(self, progress: T) -> None:
        """Replace the value that was read or written last.

        Raises:
            IntegrityError: the mark has another value, because another run has changed it.
        """
        text = msgspec.json.encode(progress).decode()
        self._adapter.move_mark(MarkUpdate(self._name, self._text, text))
        self._text = text


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
