"""`lakesync dlq` of destinations: tables that they continue without, and values that their tables cannot take."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing
from typing import TYPE_CHECKING, Any

from lakesync.model.errors import LakeSyncError, NotFoundError

if TYPE_CHECKING:
    from lakesync.adapters.backend_config import WriteTarget
    from lakesync.config import Config

LIMIT = 1_000
"""Values of one destination that are listed."""
_ID = re.compile(r"(?P<destination>\w+)/(?P<leaf>\w+)!(?P<table>\w+)(/.*)?", re.DOTALL)


def entries(config: Config, gateway: str | None) -> tuple[list[dict[str, Any]], list[LakeSyncError]]:
    """What the destinations of a configuration set aside, and why one of them does not say.

    Args:
        config: with the destinations.
        gateway: whose values are listed; None for every gateway's.
    """
    found: list[dict[str, Any]] = []
    why: list[LakeSyncError] = []
    for name, leaf in _leaves(config):
        try:
            found += _of_leaf(name, leaf, gateway)
        except LakeSyncError as error:
            why.append(error)
    return found, why


def is_entry(entry: str) -> bool:
    """Whether an id is one of a destination's."""
    return _ID.fullmatch(entry) is not None


def retry(config: Config, entry: str) -> str:
    """Have a destination write a table's rows again; the asset whose next run does it.

    Args:
        config: with the destinations.
        entry: the id of a table, or of a value in it.

    Raises:
        NotFoundError: no such destination is declared, or it sets nothing aside.
        AdapterError: the destination cannot be reached.
    """
    from lakesync.adapters.dead_letters import TableIsolation
    from lakesync.adapters.registry import as_database, open_adapter

    parts = _ID.fullmatch(entry)
    if parts is None:
        raise NotFoundError(f"{entry!r} is no id of a destination's: `lakesync dlq list` lists them")
    for name, leaf in _leaves(config):
        if (name, leaf.name) == (parts["destination"], parts["leaf"]):
            with closing(as_database(open_adapter(leaf.uri))) as adapter:
                if isinstance(adapter, TableIsolation):
                    adapter.retry_tables(f"destinations/{name}/{leaf.name}", [parts["table"]])
                    return f"destinations/{name}/{leaf.name}"
    raise NotFoundError(f"no destination {parts['destination']}/{parts['leaf']} is declared that sets tables aside")


def _leaves(config: Config) -> Iterator[tuple[str, WriteTarget]]:
    from lakesync.adapters.backend_config import resolve_backend, write_targets

    for name, declared in config.destinations.items():
        for leaf in write_targets(resolve_backend(config, declared.to), declared.tables):
            yield name, leaf


def _of_leaf(name: str, leaf: WriteTarget, gateway: str | None) -> Iterator[dict[str, Any]]:
    from lakesync.adapters.dead_letters import TableIsolation
    from lakesync.adapters.registry import as_database, open_adapter

    with closing(as_database(open_adapter(leaf.uri))) as adapter:
        if not isinstance(adapter, TableIsolation):
            return
        for aside in adapter.suspended_tables(f"destinations/{name}/{leaf.name}"):
            yield {
                "id": f"{name}/{leaf.name}!{aside.table}",
                "kind": "destination",
                "table": aside.table,
                "what": f"no rows are written, tried {aside.failures} times",
                "why": aside.reason,
                "remedy": "remove the cause; it is retried by itself, or at once by `lakesync dlq retry`",
            }
        for letter in adapter.dead_letters(LIMIT):
            if gateway not in (None, letter.gateway):
                continue
            row = f"{letter.gateway}/{letter.row_id}"
            yield {
                "id": f"{name}/{leaf.name}!{letter.table}/{row}/{letter.column}",
                "kind": "destination",
                "table": letter.table,
                "what": f"{letter.column} = {letter.value} of row {row}" if letter.column else f"row {row}",
                "why": letter.reason,
                "remedy": "push a value that fits, or have the table take it and `lakesync dlq retry`",
                "gateway": letter.gateway,
            }
