"""The stores that `lakesync staging` works on: the one that is named, else all that the configuration has."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from lakesync.cli.options import settings

if TYPE_CHECKING:
    from lakesync.staging.shards import ShardMap


def urls(staging: str | None, data: Path | None) -> dict[str, str]:
    """Shard → URL of its store, the default shard first; one store under the name "" where tables are not sharded.

    Args:
        staging: the `--staging` option, which names one store alone.
        data: the `--data` option.

    Raises:
        ConfigurationError: the shards cannot be used.
    """
    from lakesync.staging.shards import shard_urls

    if staging:
        return {"": staging}
    shards = shards_of(staging, data)
    url = settings(data).staging.url
    return {"": url} if shards is None else shard_urls(shards, url)


def shards_of(staging: str | None, data: Path | None) -> ShardMap | None:
    """The shards that are configured; None where there are none, or one store is named.

    Raises:
        ConfigurationError: they cannot be used.
    """
    from lakesync.staging.shards import shard_map

    return None if staging else shard_map(settings(data).shard_config)
