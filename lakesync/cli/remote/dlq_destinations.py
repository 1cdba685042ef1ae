"""Dead letters of destinations, for `lakesync dlq`: suspended tables, and values that a destination's tables reject.

A destination receives the lake's deltas, in one or more databases, each written by an adapter. A suspended table is one
that could not be written, and without which the destination continues. The id of a suspended table is
`DESTINATION/ADAPTER!TABLE`; that of a value continues with `/GATEWAY/ROW/COLUMN`. `lakesync.cli.remote.dlq` calls this
module.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing
from typing import TYPE_CHECKING, Any

from lakesync.model.errors import LakeSyncError, NotFoundError

if TYPE_CHECKING:
    from lakesync.adapters.backend_config import WriteTarget
    from lakesync.config import Config

MAX_VALUES = 1_000
"""Rejected values that are listed for each destination, at most."""
_ID = re.compile(r"(?P<destination>\w+)/(?P<adapter>\w+)!(?P<table>\w+)(/.*)?", re.DOTALL)


def entries(config: Config, gateway: str | None) -> tuple[list[dict[str, Any]], list[LakeSyncError]]:
    """Return the dead letters of all declared destinations.

    Args:
        config: the settings, which declare the destinations.
        gateway: only values of this gateway; None: of all gateways.

    Returns:
        The dead letters as `lakesync dlq list` shows them, and the errors of destinations that cannot be read.
    """
    letters: list[dict[str, Any]] = []
    errors: list[LakeSyncError] = []
    for name, target in _write_targets(config):
        try:
            letters += _letters_of(name, target, gateway)
        except LakeSyncError as error:
            errors.append(error)
    return letters, errors


def is_destination_letter(letter_id: str) -> bool:
    """Return whether an id is that of a destination's dead letter."""
    return _ID.fullmatch(letter_id) is not None


def retry(config: Config, letter_id: str) -> str:
    """Have a destination write the rows of a table again at its next run.

    Args:
        config: the settings, which declare the destinations.
        letter_id: id of a suspended table, or of a value in a table.

    Returns:
        The asset whose next run writes the rows.

    Raises:
        NotFoundError: no such destination is declared, or its adapter does not suspend tables.
        AdapterError: the destination cannot be reached.
    """
    from lakesync.adapters.dead_letters import TableIsolation
    from lakesync.adapters.registry import as_database, open_adapter

    parts = _ID.fullmatch(letter_id)
    if parts is None:
        raise NotFoundError(
            f"{letter_id!r} is not the id of a destination's dead letter; `lakesync dlq list` lists them"
        )
    for name, target in _write_targets(config):
        if (name, target.name) == (parts["destination"], parts["adapter"]):
            with closing(as_database(open_adapter(target.uri))) as adapter:
                if isinstance(adapter, TableIsolation):
                    adapter.retry_tables(f"destinations/{name}/{target.name}", [parts["table"]])
                    return f"destinations/{name}/{target.name}"
    raise NotFoundError(
        f"no declared destination {parts['destination']}/{parts['adapter']} sets tables aside; see `lakesync dlq list`"
    )


def _write_targets(config: Config) -> Iterator[tuple[str, WriteTarget]]:
    """Yield the adapters of each declared destination, with the destination's name."""
    from lakesync.adapters.backend_config import resolve_backend, write_targets

    for name, declared in config.destinations.items():
        for target in write_targets(resolve_backend(config, declared.to), declared.tables):
            yield name, target


def _letters_of(name: str, target: WriteTarget, gateway: str | None) -> Iterator[dict[str, Any]]:
    """Yield the dead letters of one adapter of a destination.

    Args:
        name: the destination.
        target: the adapter.
        gateway: only values of this gateway; None: of all gateways.
    """
    from lakesync.adapters.dead_letters import TableIsolation
    from lakesync.adapters.registry import as_database, open_adapter

    with closing(as_database(open_adapter(target.uri))) as adapter:
        if not isinstance(adapter, TableIsolation):
            return
        for suspended in adapter.suspended_tables(f"destinations/{name}/{target.name}"):
            yield {
                "id": f"{name}/{target.name}!{suspended.table}",
                "kind": "destination",
                "table": suspended.table,
                "what": f"no rows are written, tried {suspended.failures} times",
                "why": suspended.reason,
                "remedy": "remove the cause; it is retried automatically, or at once by `lakesync dlq retry`",
            }
        for letter in adapter.dead_letters(MAX_VALUES):
            if gateway not in (None, letter.gateway):
                continue
            row = f"{letter.gateway}/{letter.row_id}"
            yield {
                "id": f"{name}/{target.name}!{letter.table}/{row}/{letter.column}",
                "kind": "destination",
                "table": letter.table,
                "what": f"{letter.column} = {letter.value} of row {row}" if letter.column else f"row {row}",
                "why": letter.reason,
                "remedy": "push a value that fits, or change the table and run `lakesync dlq retry`",
                "gateway": letter.gateway,
            }
