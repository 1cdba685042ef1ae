"""A store that is made beside the one in use, or where none is, and takes its place whole or not at all."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Protocol, TypeVar

from lakesync.exceptions import ConfigurationError
from lakesync.staging.restored_log import Restoring
from lakesync.staging.store import Replayer

T = TypeVar("T")


class FreshStore(Protocol):
    """An empty store that nobody else can see yet."""

    def ensure_gateway(self, gateway: str) -> None:
        """Make a gateway with a new epoch."""

    def run(self, gateway: str, work: Callable[[Restoring], T]) -> T:
        """Run `work` in a commit."""


def fresh_store(
    url: str, wall: Callable[[], int], replayer: Replayer, *, replace: bool
) -> AbstractContextManager[FreshStore]:
    """A fresh store for `url`, put in place at the end of the `with`, and dropped where something is raised in it.

    Args:
        wall: the server's clock in milliseconds.
        replace: a store that is there already is set aside, under a name that tells when.

    Raises:
        ConfigurationError: there is a store already and `replace` is not set, or the URL names no lasting store.
        StagingUnavailableError: the store in use has an owner, or cannot be reached.
    """
    if url.startswith("sqlite://"):
        from lakesync.staging.sqlite.fresh import fresh_folder

        return fresh_folder(url, wall, replayer, replace=replace)
    if url.startswith(("postgresql://", "postgres://")):
        from lakesync.staging.postgres.fresh import fresh_schema

        return fresh_schema(url, wall, replace=replace)
    raise ConfigurationError(f"staging at a {url.partition(':')[0]!r} URL does not outlive its process: nothing to do")
