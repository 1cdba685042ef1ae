"""Lists, retries and drops the dead letters in an app's database, for `lakesync dlq --app`.

They are the changes that the gateway rejected (kind `edit`) and the actions that failed (kind `action`). No gateway is
called: a retry takes effect when the app next synchronises. A dead letter is a mapping with `id`, `kind`, `table`,
`what`, `why` and `remedy`, as `lakesync dlq show` prints it.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from lakesync.cli.remote.dead_letters import DeadLetter, Method
from lakesync.model.errors import ConfigurationError, NotFoundError

_EDIT, _ACTION = "edit", "action"
"""The kinds, with which ids begin: `edit:7`, `action:ID`."""


def app_dead_letters(path: Path) -> list[DeadLetter]:
    """Return the dead letters of an app.

    Args:
        path: the app's database.

    Raises:
        ConfigurationError: the file is not an app's database.
    """
    with _open_app(path) as client:
        return [*_edits(client), *_actions(client)]


def retry_or_drop_in_app(path: Path, method: Method, letter_id: str | None) -> list[str]:
    """Retry dead letters at the app's next sync, or drop them. A dropped change is reverted in the app's table.

    Args:
        path: the app's database.
        method: `retry` or `drop`.
        letter_id: id of a dead letter; None: all.

    Returns:
        The ids of the affected dead letters.

    Raises:
        NotFoundError: there is no such dead letter.
        ConfigurationError: the file is not an app's database.
    """
    with _open_app(path) as client:
        ids = [each["id"] for each in (*_edits(client), *_actions(client))]
        if letter_id is not None and letter_id not in ids:
            raise NotFoundError(f"there is no dead letter {letter_id!r} in {path}; it has {', '.join(ids) or 'none'}")
        chosen = ids if letter_id is None else [letter_id]
        for each in chosen:
            kind, _, name = each.partition(":")
            if kind == _EDIT:
                getattr(client, method)(int(name))
            else:
                getattr(client.coordinator.actions, method)(name)
        return chosen


def _edits(client: Any) -> Iterator[DeadLetter]:
    """Yield the changes of a client that the gateway rejected, as dead letters."""
    for edit in client.pending():
        if edit.status == "refused":
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
            "what": f"{action.action_type} by {action.connector}, tried {queued.attempts} times",
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
