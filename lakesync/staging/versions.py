"""Shows and upgrades the schema of the store that a URL names: `lakesync staging status` and `upgrade` call it.

It is apart from the stores because it works beside a store's owner, or while no process has it open.
"""

from __future__ import annotations

from collections.abc import Mapping

from lakesync.model.errors import ConfigurationError
from lakesync.staging.migrations import Status, Upgrade


def status(url: str) -> Status:
    """Read a store's status; it may be in use.

    Raises:
        ConfigurationError: the URL names no kind of store, or there is no store.
        StagingUnavailableError: it cannot be read.
    """
    if url.startswith("sqlite://"):
        from lakesync.staging.sqlite import inspection as of_sqlite

        return of_sqlite.status(url)
    _check_postgres(url)
    from lakesync.staging.postgres import inspection

    return inspection.status(url)


def upgrade(url: str) -> list[Upgrade]:
    """Upgrade a store's schema to the newest version, in place; its contents stay.

    Raises:
        ConfigurationError: as `status`.
        StagingVersionError: a newer LakeSync wrote the store; nothing was changed.
        StagingUnavailableError: it cannot be reached or, on SQLite, its owner is running.
    """
    if url.startswith("sqlite://"):
        from lakesync.staging.sqlite import inspection as of_sqlite

        return of_sqlite.upgrade(url)
    _check_postgres(url)
    from lakesync.staging.postgres import inspection

    return inspection.upgrade(url)


def upgrade_all(urls: Mapping[str, str]) -> dict[str, list[Upgrade]]:
    """Upgrade several stores by name; if a newer LakeSync wrote any of them, change none.

    Raises:
        As `upgrade`.
    """
    for url in urls.values():
        if any(schema.version > schema.newest for schema in status(url).schemas):
            upgrade(url)  # raises the error
    return {name: upgrade(url) for name, url in urls.items()}


def _check_postgres(url: str) -> None:
    if not url.startswith(("postgresql://", "postgres://")):
        kind = url.partition(":")[0]
        raise ConfigurationError(f"staging at a {kind!r} URL has nothing that outlives its process: there is no schema")
