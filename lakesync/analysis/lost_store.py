"""Checks before a start that the staging store was not lost: the database with every push that is not in the lake yet.

The gateway server calls `check_not_lost`, and so do `lakesync up`, `lakesync gateway` and `lakesync doctor`. The *lake*
is the Iceberg tables that the pipeline copies *deltas* (changes of rows) to. A *shard* is a store for some of the
tables.
"""

from __future__ import annotations

from contextlib import suppress
from importlib.util import find_spec
from typing import TYPE_CHECKING

from lakesync.model.errors import ConfigurationError, LakeUnavailableError, StagingUnavailableError
from lakesync.model.secrets import without_password
from lakesync.staging import store_urls
from lakesync.staging.shards import urls_by_shard

if TYPE_CHECKING:
    from lakesync.config import Config


def check_not_lost(config: Config) -> None:
    """Raise ConfigurationError if the lake has deltas, but staging has no store.

    The store was lost, or the settings name another one. A gateway would create an empty store, and clients would
    delete every row that they have not written since. A catalogue that cannot be read here is not checked.
    """
    url = config.staging.url
    if url.startswith("memory://") or find_spec("pyiceberg") is None:
        return
    for each in urls_by_shard(config.shard_config, url).values():
        try:
            store_urls.store_status(each)
        except ConfigurationError:  # there is no store
            continue
        except StagingUnavailableError:
            pass
        return
    from lakesync.analysis.catalogue import LakeReader, UnreadableTableError, may_have_catalogue

    if not may_have_catalogue(config):
        return
    with suppress(LakeUnavailableError), LakeReader(config) as lake:
        try:
            has_deltas = lake.deltas is not None and lake.deltas.current_snapshot() is not None
        except UnreadableTableError as error:
            raise ConfigurationError(f"there is no staging store at {without_password(url)}, and {error}.") from error
        if has_deltas:
            raise ConfigurationError(
                f"there is no staging store at {without_password(url)}, but the lake has deltas. With an empty store, "
                "clients would delete their rows. Restore the store or correct [staging] url; or run "
                "`lakesync staging rebuild --from-lake`, which makes the store from the lake."
            )
