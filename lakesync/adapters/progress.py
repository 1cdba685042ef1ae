"""How far something is, as JSON: in the mark of a backend, or in a file that is replaced whole."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Generic, Protocol, TypeVar

import msgspec

from lakesync.adapters.base import Mark, Marked
from lakesync.model.errors import ConfigurationError, IntegrityError

T = TypeVar("T", bound=msgspec.Struct)


def progress_in(text: str | None, kind: type[T], name: str) -> T | None:
    """What a mark says; None where there is none yet.

    Raises:
        IntegrityError: it says something else: `name` is used for two things.
    """
    if text is None:
        return None
    try:
        return msgspec.json.decode(text, type=kind)
    except msgspec.MsgspecError as error:
        raise IntegrityError(
            f"the mark {name!r} is another kind of work's ({error}): give this one another name"
        ) from error


class Kept(Protocol[T]):
    """Where something is kept for the next run."""

    def read(self) -> T | None:
        """Return it; None if it was never written."""

    def write(self, progress: T) -> None:
        """Keep it durably, in place of what was there."""


class MarkKept(Generic[T]):
    """In a mark of an adapter, which every process that opens the adapter finds."""

    def __init__(self, adapter: Marked, name: str, kind: type[T]) -> None:
        """Args: adapter: keeps the mark; name: of the mark; kind: of what it says."""
        self._adapter = adapter
        self._name = name
        self._kind = kind
        self._text: str | None = None

    def read(self) -> T | None:
        """Return what the mark says.

        Raises:
            IntegrityError: it says something else: the name is used for two things.
        """
        self._text = self._adapter.mark(self._name)
        return progress_in(self._text, self._kind, self._name)

    def write(self, progress: T) -> None:
        """Move the mark from where it was read, or written, last.

        Raises:
            IntegrityError: another run has moved it.
        """
        text = msgspec.json.encode(progress).decode()
        self._adapter.move_mark(Mark(self._name, self._text, text))
        self._text = text


class ProgressKept(Generic[T]):
    """In a file of this machine, durable as soon as it is written."""

    def __init__(self, path: Path, kind: type[T]) -> None:
        """Args: path: made, with its folder, when it is first written; kind: of what it holds."""
        self.path = path
        self._kind = kind

    def read(self) -> T | None:
        """What it holds; None where it is not there.

        Raises:
            ConfigurationError: it holds something else, or is damaged.
        """
        try:
            return msgspec.json.decode(self.path.read_bytes(), type=self._kind)
        except FileNotFoundError:
            return None
        except msgspec.MsgspecError as error:
            raise ConfigurationError(f"{self.path} is no progress of this kind: {error}; remove it") from error

    def write(self, progress: T) -> None:
        """Put it in place of what was there."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        scratch = self.path.with_suffix(".new")
        with scratch.open("wb") as file:
            file.write(msgspec.json.encode(progress))
            file.flush()
            os.fsync(file.fileno())
        scratch.replace(self.path)

    def remove(self) -> None:
        """Forget it."""
        self.path.unlink(missing_ok=True)
