"""Maps tables to shards, and shards to the URLs of their stores, from the setting `shard_config`.

A *shard* is a staging store with some of the tables of every gateway (one app's stream of changes). `staging.sharded`,
the engine and the command `lakesync staging` call this module.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING
from zlib import crc32

import msgspec

from lakesync.model.errors import ConfigurationError
from lakesync.model.schema import is_identifier
from lakesync.staging.head import MAIN_SHARD

if TYPE_CHECKING:
    from lakesync.config.sections import ShardConfig
    from lakesync.model.types import RowDelta

_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


class ShardMap(msgspec.Struct, frozen=True, dict=True):
    """The shards, the same for every gateway. Each table belongs to one shard, so a transaction on a row needs one."""

    tables: Mapping[str, str]
    """The shard's name by table."""
    default: str
    """The name of the default shard. It has all other tables, and what belongs to no table: clients, schemas, rules,
    actions and connectors."""
    urls: Mapping[str, str] = {}
    """The store's URL by shard name, for shards whose store is not a folder inside the default shard's."""

    @property
    def names(self) -> tuple[str, ...]:
        """Every shard, the default one first."""
        return (self.default, *sorted({*self.tables.values(), *self.urls} - {self.default}))

    @cached_property
    def numbers(self) -> Mapping[str, int]:
        """By name, a number of each shard that does not change when shards are added: 0 for the default one.

        The others have 21 bits of a checksum of the name, so that an erasure's number, which begins with the shard's,
        is an exact number in JSON.
        """
        return {name: 0 if name == self.default else crc32(name.encode()) >> 11 for name in self.names}

    def of(self, table: str) -> str:
        """Return the name of a table's shard, in any case of the table's name.

        Two tables may not differ in case alone (see `engine.names`). So a push to `Notes` must reach the shard that has
        `notes`, which then rejects it.
        """
        return self._folded.get(table.lower(), self.default)

    def divide(self, deltas: Iterable[RowDelta]) -> dict[str, list[RowDelta]]:
        """Return deltas by the name of their table's shard; shards without any are absent."""
        by_shard: dict[str, list[RowDelta]] = {}
        for delta in deltas:
            by_shard.setdefault(self.of(delta.table), []).append(delta)
        return by_shard

    def check(self) -> None:
        """Check names and URLs; `shard_map` calls it.

        Raises:
            ConfigurationError: a name is invalid, or a URL is given for an unknown shard.
        """
        for table in self.tables:
            if not is_identifier(table):
                raise ConfigurationError(
                    f"shard_config names table {table!r}, which no push can name: write an identifier"
                )
        if len(self._folded) < len(self.tables):
            raise ConfigurationError("shard_config names tables that differ only in case: rename one")
        for name in (self.default, *self.tables.values()):
            if _NAME.fullmatch(name) is None or name == MAIN_SHARD:
                raise ConfigurationError(
                    f"shard {name!r} must be 1 to 64 of A-Z a-z 0-9 _ - and not {MAIN_SHARD!r}, "
                    "which is the shard's name if tables are not sharded"
                )
        by_number = {number: name for name, number in self.numbers.items()}
        for name in self.names:
            if (other := by_number[self.numbers[name]]) != name:
                raise ConfigurationError(
                    f"shards {name!r} and {other!r} have the same number, a checksum of the name: rename one"
                )
        unknown = sorted(set(self.urls) - {self.default, *self.tables.values()})
        if unknown:
            raise ConfigurationError(f"stores are given for {', '.join(unknown)}, which no table belongs to")
        if self.default in self.urls:
            raise ConfigurationError(
                f"the store of the default shard {self.default!r} is the one of staging.url: give none for it"
            )

    @cached_property
    def _folded(self) -> dict[str, str]:
        """The shard's name by table, in lower case."""
        return {table.lower(): shard for table, shard in self.tables.items()}


def shard_map(configured: ShardConfig | None) -> ShardMap | None:
    """Return the configured shards; None if tables are not sharded.

    Raises:
        ConfigurationError: they are invalid.
    """
    if configured is None:
        return None
    shards = ShardMap(configured.shards, configured.default, configured.stores)
    shards.check()
    return shards


def shard_urls(shards: ShardMap, main: str) -> dict[str, str]:
    """Return the URL of each shard's store by shard name, the default shard first.

    Args:
        shards: the shards, after `ShardMap.check`.
        main: the URL of the default shard's store.

    Raises:
        ConfigurationError: two shards have the same store, or a shard has none.
    """
    urls = {shards.default: main}
    for name in shards.names[1:]:
        urls[name] = shards.urls.get(name) or _derived_url(main, name)
    _check_distinct(urls)
    return urls


def urls_by_shard(configured: ShardConfig | None, main: str) -> dict[str, str]:
    """Return shard → the URL of its store, the default shard first; without shards, the only shard is "".

    Args:
        configured: the configured shards; None if tables are not sharded.
        main: the URL of the default shard's store, or of the only store.

    Raises:
        ConfigurationError: the shards are invalid.
    """
    shards = shard_map(configured)
    return {"": main} if shards is None else shard_urls(shards, main)


def _derived_url(main: str, name: str) -> str:
    """Return the URL of a shard without a configured one: a folder inside the default shard's, or a store in memory.

    Args:
        main: the URL of the default shard's store.
        name: the shard's name.

    Raises:
        ConfigurationError: the default store is a database, inside which there is no place for another.
    """
    if main.startswith("sqlite://"):
        return f"{main.rstrip('/')}/{name}"
    if main.startswith("memory://"):
        data_name = main.removeprefix("memory://")
        return f"memory://{data_name}/{name}" if data_name else main  # without a name, each store is a new one
    raise ConfigurationError(
        f"shard {name!r} needs a store of its own: name another database for it in shard_config.stores"
    )


def _check_distinct(urls: Mapping[str, str]) -> None:
    """Check that no two shards have the same store.

    Raises:
        ConfigurationError: two have, as far as their URLs show.
    """
    seen: dict[str, str] = {}
    for name, url in urls.items():
        identity = _identity(url)
        if identity in seen:
            raise ConfigurationError(f"shards {seen[identity]!r} and {name!r} have the same store: give each its own")
        if identity is not None:
            seen[identity] = name


def _identity(url: str) -> str | None:
    """Return a form of the URL that is equal for most URLs of the same store; None for a store that is always new.

    Links, host aliases, ports and parameters are not resolved. A second shard with the same store is rejected when it
    is used: a SQLite folder has one owner, and a gateway in a database belongs to one shard.
    """
    if url == "memory://":
        return None
    scheme, _, rest = url.partition("://")
    if scheme == "sqlite":
        return "sqlite:/" + "/".join(part for part in rest.split("/") if part not in ("", "."))
    return ("postgresql://" if scheme.startswith("postgres") else f"{scheme}://") + rest.rpartition("@")[2].rstrip("/")
