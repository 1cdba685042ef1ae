"""Reads the status of a staging store and upgrades its schema, without opening the store.

`lakesync staging status`, `lakesync staging upgrade` and `lakesync doctor` call it. `status` works while another
process has the store open; `upgrade` works on SQLite only while none has.
"""

from __future__ import annotations

from collections.abc import Mapping

from lakesync.model.errors import ConfigurationError
from lakesync.staging.migrations import Status, Upgrade


def status(url: str) -> Status:
    """Read a store's schema versions, size and counters; the store may be in use.

    Args:
        url: the store's URL, as for `open_store`.

    Raises:
        ConfigurationError: the URL names no kind of store that outlives its process, or there is no store.
        StagingUnavailableError: the store cannot be read.
    """
    if url.startswith("sqlite://"):
        from lakesync.staging.sqlite import inspection as of_sqlite

        return of_sqlite.status(url)
    _check_postgres(url)
    from lakesync.staging.postgres import inspection

    return inspection.status(url)


def upgrade(url: str) -> list[Upgrade]:
    """Upgrade a store's schema to the newest version, in place; its contents stay.

    Args:
        url: the store's URL, as for `open_store`.

    Returns:
        The versions of each database before and after.

    Raises:
        ConfigurationError: as `status`.
        StagingVersionError: a newer LakeSync wrote the store; nothing was changed.
        StagingUnavailableError: the store cannot be reached or, on SQLite, a process has it open.
    """
    if url.startswith("sqlite://"):
        from lakesync.staging.sqlite import inspection as of_sqlite

        return of_sqlite.upgrade(url)
    _check_postgres(url)
    from lakesync.staging.postgres import inspection

    return inspection.upgrade(url)


def upgrade_all(urls: Mapping[str, str]) -> dict[str, list[Upgrade]]:
    """Upgrade several stores; if a newer LakeSync wrote any of them, none is changed.

    Args:
        urls: the stores' URLs, by shard name.

    Returns:
        The versions of each store's databases before and after, by shard name.

    Raises:
        ConfigurationError, StagingVersionError, StagingUnavailableError: as `upgrade`.
    """
    for url in urls.values():
        if any(schema.version > schema.newest for schema in status(url).schemas):
            upgrade(url)  # raises StagingVersionError, and changes nothing
    return {name: upgrade(url) for name, url in urls.items()}


def _check_postgres(url: str) -> None:
    """Raise ConfigurationError unless the URL is of Postgres."""
    if not url.startswith(("postgresql://", "postgres://")):
        kind = url.partition(":")[0]
        raise ConfigurationError(f"staging at a {kind!r} URL has nothing that outlives its process: there is no schema")
