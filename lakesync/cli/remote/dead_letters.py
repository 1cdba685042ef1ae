"""Lists, retries and drops the dead letters of a gateway or of an app, for `lakesync dlq`.

Those of a gateway are in three places, by kind:

- `value`: the lake's table `rejected` has current values of rows that do not fit the type of their column.
- `destination`: the pipeline writes the databases of declared destinations and flows. Each database records the tables
  that could not be written to it (suspended tables), and the values that it rejected.
- `work`: a gateway with `[flush] to_uri` itself updates tables of current rows after a flush. It has the updates that
  failed.

An app has its own in its database: the changes that the gateway rejected (kind `edit`) and the actions that failed
(kind `action`). No gateway is called for them: a retry takes effect when the app next synchronises.

A dead letter is a mapping with `id`, `kind`, `table`, `what`, `why` and `remedy`, as `lakesync dlq show` prints it.
Some also have `rowIds` or `gateway`.

A gateway is one app's stream of changes; `{gateway}` in the path of a request is its id.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from lakesync.cli.output import count
from lakesync.model.errors import ConfigurationError, LakeSyncError, NotFoundError, ValidationError

if TYPE_CHECKING:
    from lakesync.adapters.backend_config import WriteTarget
    from lakesync.cli.connection import GatewayConnection
    from lakesync.config import Config

DeadLetter = dict[str, Any]
"""A dead letter, with the keys that are listed above."""
Method = Literal["retry", "drop"]
"""What to do with a dead letter."""

Kind = Literal["value", "work", "destination"]
"""The kinds of a gateway's dead letters."""
_EDIT, _ACTION = "edit", "action"
"""The kinds of an app's dead letters, with which their ids begin: `edit:7`, `action:ID`."""
PAST_TENSES: dict[Method, str] = {"retry": "retried", "drop": "dropped"}
_MAX_VALUES = 1_000
"""Rejected values that are listed for each database of a destination, at most."""
_DESTINATION_ID = re.compile(r"(?P<writer>(flows/)?\w+/\w+)!(?P<table>\w+)(/.*/.*/\w*)?", re.DOTALL)
"""The id of a suspended table, `DESTINATION/ADAPTER!TABLE` or `flows/FLOW/ADAPTER!TABLE`; that of a value continues
with `/GATEWAY/ROW/COLUMN`."""


class TableWriter(NamedTuple):
    """A declared destination or flow, at one of the adapters (databases) that it writes to."""

    id: str
    """Begins the ids of its dead letters: `DESTINATION/ADAPTER` or `flows/FLOW/ADAPTER`."""
    asset: str
    """Key of its Dagster asset."""
    job: str
    """Name of the Dagster job that materialises the asset."""
    mark: str
    """Name of its mark at the adapter, the record of what it has written. Its tables are suspended under this name."""
    target: WriteTarget


def dead_letters_of_gateway(
    kind: Kind | None, config: Config, gateway: str | None, connect: Callable[[], GatewayConnection]
) -> tuple[list[DeadLetter], list[LakeSyncError]]:
    """Read the dead letters in the lake, the declared destinations and the gateway.

    Args:
        kind: the kind to read; None for all.
        config: the settings, which name the lake and declare the destinations.
        gateway: only values of this gateway; None: of all gateways.
        connect: returns a connection to the gateway, as an admin; may raise LakeSyncError.

    Returns:
        The dead letters, and the errors of the places that do not answer.

    Raises:
        LakeSyncError: no place answers; it is the error of the last one.
    """
    letters: list[DeadLetter] = []
    errors: list[LakeSyncError] = []
    sources: list[Callable[[], Iterator[DeadLetter]]] = []
    if kind in (None, "value"):
        sources.append(partial(_rejected_values, config, gateway))
    if kind in (None, "destination"):
        sources += [partial(_destination_dead_letters, each, gateway) for each in _table_writers(config)]
    if kind in (None, "work"):
        sources.append(lambda: _failed_updates(connect()))
    for read in sources:
        try:
            letters += read()
        except LakeSyncError as error:
            errors.append(error)
    if errors and len(errors) == len(sources):
        raise errors[-1]
    return letters, errors


def retry_or_drop_updates(
    connect: Callable[[], GatewayConnection], method: Method, letter_id: str | None
) -> Iterator[tuple[str, Any]]:
    """Retry or drop dead letters of kind `work`: one at each step of the iteration.

    Args:
        connect: returns the connection to the gateway, as an admin; may raise LakeSyncError.
        method: `retry` returns the work to the gateway's queue, `drop` deletes it.
        letter_id: the id of the dead letter; None: all of this kind.

    Yields:
        The id of each dead letter and the decoded response of the gateway, as soon as the gateway has responded.

    Raises:
        ValidationError: the id is that of another kind.
        NotFoundError: there is no such dead letter.
        LakeSyncError: the gateway does not answer, or rejects the request.
    """
    if letter_id is not None and is_of_destination(letter_id):  # only a retry is possible, by `retry_destination`
        raise ValidationError(
            f"{letter_id!r} is a destination's dead letter, which cannot be dropped; remove the cause and run "
            "`lakesync dlq retry`"
        )
    if letter_id is not None and "/" in letter_id:  # of kind `value`: TABLE/ROW/COLUMN
        raise ValidationError(
            f"{letter_id!r} is a value, which cannot be {PAST_TENSES[method]}; push a value that fits its column, or "
            "change the schema and rebuild the table with `lakesync backfill tables/TABLE`"
        )
    remote = connect()
    for each in [letter["id"] for letter in _failed_updates(remote)] if letter_id is None else [letter_id]:
        if method == "retry":
            yield each, remote.post("/admin/dead-letters/{gateway}", name=each)
        else:
            yield each, remote.delete("/admin/dead-letters/{gateway}", each)


def is_of_destination(letter_id: str) -> bool:
    """Return whether an id is that of a dead letter of kind `destination`."""
    return _DESTINATION_ID.fullmatch(letter_id) is not None


def retry_destination(config: Config, letter_id: str) -> TableWriter:
    """Let a destination or flow write the rows of a table again at its next run.

    Args:
        config: the settings, which declare the destinations and flows.
        letter_id: the id of a suspended table, or of a value in a table.

    Returns:
        The destination or flow, whose next run writes the rows.

    Raises:
        NotFoundError: no such destination or flow is declared, or its adapter does not suspend tables.
        AdapterError: the destination's database cannot be reached.
    """
    from lakesync.adapters.base import SuspendsTables
    from lakesync.adapters.registry import as_database, open_adapter

    parts = _DESTINATION_ID.fullmatch(letter_id)
    if parts is None:
        raise NotFoundError(
            f"{letter_id!r} is not the id of a destination's dead letter; `lakesync dlq list` lists them"
        )
    for writer in _table_writers(config):
        if writer.id == parts["writer"]:
            with closing(as_database(open_adapter(writer.target.uri))) as adapter:
                if isinstance(adapter, SuspendsTables):
                    adapter.retry_tables(writer.mark, [parts["table"]])
                    return writer
    raise NotFoundError(
        f"no destination or flow {parts['writer']} is declared that suspends tables; `lakesync dlq list` lists them"
    )


def app_dead_letters(path: Path) -> list[DeadLetter]:
    """Return the dead letters of an app.

    Args:
        path: the app's database.

    Raises:
        ConfigurationError: the file is not an app's database.
    """
    with _open_app(path) as client:
        return [*_edits(client), *_actions(client)]


def retry_or_drop_in_app(path: Path, method: Method, letter_id: str | None) -> Iterator[tuple[str, Any]]:
    """Retry dead letters of an app at its next sync, or drop them: one at each step of the iteration.

    A dropped change is reverted in the app's table.

    Args:
        path: the app's database.
        method: `retry` or `drop`.
        letter_id: id of a dead letter; None: all.

    Yields:
        The id of each dead letter, and the object that `--json` prints for it.

    Raises:
        NotFoundError: there is no such dead letter.
        ConfigurationError: the file is not an app's database.
    """
    with _open_app(path) as client:
        ids = [each["id"] for each in (*_edits(client), *_actions(client))]
        if letter_id is not None and letter_id not in ids:
            raise NotFoundError(f"there is no dead letter {letter_id!r} in {path}; it has {', '.join(ids) or 'none'}")
        for each in ids if letter_id is None else [letter_id]:
            kind, _, name = each.partition(":")
            if kind == _EDIT:
                getattr(client, method)(int(name))  # `client.retry` or `client.drop`, by the edit's number
            else:
                getattr(client.coordinator.actions, method)(name)
            yield each, {PAST_TENSES[method]: each}


def _failed_updates(remote: GatewayConnection) -> Iterator[DeadLetter]:
    """Yield the dead letters of kind `work`, which the gateway has.

    Raises:
        LakeSyncError: the gateway does not answer.
    """
    for each in remote.get("/admin/dead-letters/{gateway}")["deadLetters"]:
        yield {
            "id": each["jobId"],
            "kind": "work",
            "table": each["table"],
            "what": f"{count(len(each['rowIds']), 'row')} of batch {each['batchId']}, "
            f"tried {count(each['attempts'], 'time')}",
            "why": each["failure"],
            "remedy": "repair the destination, then run `lakesync dlq retry`",
            "rowIds": each["rowIds"],
        }


def _rejected_values(config: Config, gateway: str | None) -> Iterator[DeadLetter]:
    """Yield the dead letters of kind `value`; none if no catalogue is configured here.

    Args:
        config: the settings, which name the lake.
        gateway: only values of this gateway; None: of all gateways.
    """
    from lakesync.analysis.catalogue import LakeReader, may_have_catalogue

    if not may_have_catalogue(config):
        return
    with LakeReader(config) as lake:
        rows = [] if lake.rejected is None else lake.rejected.scan().to_arrow().to_pylist()
    for row in rows:
        if gateway in (None, row["gateway"]):
            yield {
                "id": f"{row['table_name']}/{row['row_id']}/{row['column_name']}",
                "kind": "value",
                "table": row["table_name"],
                "what": f"{row['column_name']} = {row['value']} of row {row['row_id']}",
                "why": f"the column has type {row['type']}; the state table has null",
                "remedy": "push a value that fits; the history and the clients keep this one",
                "gateway": row["gateway"],
            }


def _table_writers(config: Config) -> Iterator[TableWriter]:
    """Yield the declared destinations, and the flows that keep tables of current rows, each once for each adapter."""
    from lakesync.adapters.backend_config import write_targets
    from lakesync.config.backends import LAKE

    for name, destination in config.destinations.items():
        for target in write_targets(config, destination.to, destination.tables):
            asset = f"destinations/{name}/{target.name}"
            yield TableWriter(f"{name}/{target.name}", asset, "destinations", asset, target)
    for name, flow in config.flows.items():
        if flow.rows and flow.to != LAKE:
            for target in write_targets(config, flow.to, flow.tables):
                mark = f"flows/{name}/{target.name}"
                yield TableWriter(mark, f"flows/{name}", f"flows_{name}", mark, target)


def _destination_dead_letters(writer: TableWriter, gateway: str | None) -> Iterator[DeadLetter]:
    """Yield the dead letters of one adapter of a destination or flow; none if the adapter does not suspend tables.

    Args:
        writer: the destination or flow, and the adapter.
        gateway: only values of this gateway; None: of all gateways. Suspended tables belong to all.
    """
    from lakesync.adapters.base import SuspendsTables
    from lakesync.adapters.deltas import TableSelection
    from lakesync.adapters.registry import as_database, open_adapter

    target = writer.target
    listed = TableSelection(target.tables, target.without, () if gateway is None else (gateway,))
    with closing(as_database(open_adapter(target.uri))) as adapter:
        if not isinstance(adapter, SuspendsTables):
            return
        for suspended in adapter.suspended_tables(writer.mark):
            yield {
                "id": f"{writer.id}!{suspended.table}",
                "kind": "destination",
                "table": suspended.table,
                "what": f"no rows are written, tried {count(suspended.failures, 'time')}",
                "why": suspended.reason,
                "remedy": "remove the cause; it is retried automatically, or at once by `lakesync dlq retry`",
            }
        for letter in adapter.dead_letters(_MAX_VALUES, listed):
            row = f"{letter.gateway}/{letter.row_id}"
            yield {
                "id": f"{writer.id}!{letter.table}/{row}/{letter.column}",
                "kind": "destination",
                "table": letter.table,
                "what": f"{letter.column} = {letter.value} of row {row}" if letter.column else f"row {row}",
                "why": letter.reason,
                "remedy": "push a value that fits, or change the table and run `lakesync dlq retry`",
                "gateway": letter.gateway,
            }


def _edits(client: Any) -> Iterator[DeadLetter]:
    """Yield the changes of a client that the gateway rejected, as dead letters."""
    for edit in client.pending():
        if edit.status == "refused":  # rejected by the gateway
            delta = edit.delta
            cells = ", ".join(f"{cell.column} = {bytes(cell.value).decode()}" for cell in delta.columns)
            yield {
                "id": f"{_EDIT}:{edit.number}",
                "kind": _EDIT,
                "table": delta.table,
                "what": f"{delta.op} of row {delta.row_id}" + (f": {cells}" if cells else ""),
                "why": f"{edit.code}: {edit.message}",
                "remedy": "remove the cause and run `lakesync dlq retry --app FILE`, or `drop` to revert the change",
            }


def _actions(client: Any) -> Iterator[DeadLetter]:
    """Yield the failed actions of a client, as dead letters."""
    for queued in client.coordinator.actions.all("failed"):
        action = queued.action
        yield {
            "id": f"{_ACTION}:{queued.action_id}",
            "kind": _ACTION,
            "table": None,
            "what": f"{action.action_type} by {action.connector}, tried {count(queued.attempts, 'time')}",
            "why": f"{queued.code}: {queued.message}",
            "remedy": "remove the cause and run `lakesync dlq retry --app FILE`, or `drop` to discard the action",
        }


@contextmanager
def _open_app(path: Path) -> Iterator[Any]:
    """Yield the client of an app's database. It sends no request.

    Raises:
        ConfigurationError: the file is not an app's database.
    """
    from lakesync.client.factory import open_client
    from lakesync.client.sqlite.client_store import stored_position, stored_schemas
    from lakesync.client.transports.http import HttpTransport

    if not path.is_file():
        raise ConfigurationError(f"{path} does not exist; give the database that your app opens with lakesync.open")
    try:
        with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as db:
            position, schemas = stored_position(db), stored_schemas(db)
    except sqlite3.Error as error:
        raise ConfigurationError(f"{path} cannot be read as an app's database: {error}") from error
    if not position.client_id:
        raise ConfigurationError(f"{path} was never opened with lakesync.open, so it has no dead letters")
    unused_transport = HttpTransport("http://127.0.0.1:9", position.gateway)
    with open_client(path, transport=unused_transport, client_id=position.client_id, schemas=schemas) as client:
        yield client
