"""What an app's own database has set aside: changes that the gateway refused, and actions that failed.

They are the client's, in its file alone: no gateway is asked.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from lakesync.model.errors import ConfigurationError, NotFoundError

EDIT, ACTION = "edit", "action"


def entries(path: Path) -> list[dict[str, Any]]:
    """What was set aside.

    Raises:
        ConfigurationError: the file is no app's database.
    """
    with _opened(path) as client:
        return [*_edits(client), *_actions(client)]


def retry(path: Path, entry: str | None) -> list[str]:
    """Let one, or all, be sent again when the app synchronises next; their ids.

    Raises:
        NotFoundError: there is none of that id.
    """
    return _each(path, entry, "retry")


def drop(path: Path, entry: str | None) -> list[str]:
    """Give one, or all, up: rows are as if the changes had never been made; their ids.

    Raises:
        NotFoundError: there is none of that id.
    """
    return _each(path, entry, "drop")


def _each(path: Path, entry: str | None, what: str) -> list[str]:
    with _opened(path) as client:
        known = [each["id"] for each in (*_edits(client), *_actions(client))]
        if entry is not None and entry not in known:
            raise NotFoundError(f"nothing with the id {entry!r} was set aside in {path}: it has {known or 'nothing'}")
        chosen = known if entry is None else [entry]
        for each in chosen:
            kind, _, name = each.partition(":")
            if kind == EDIT:
                getattr(client, what)(int(name))
            else:
                getattr(client.coordinator.actions, what)(name)
        return chosen


def _edits(client: Any) -> Iterator[dict[str, Any]]:
    for edit in client.pending():
        if edit.status == "refused":
            delta = edit.delta
            cells = ", ".join(f"{cell.column} = {bytes(cell.value).decode()}" for cell in delta.columns)
            yield {
                "id": f"{EDIT}:{edit.number}",
                "kind": EDIT,
                "table": delta.table,
                "what": f"{delta.op} of row {delta.row_id}" + (f": {cells}" if cells else ""),
                "why": f"{edit.code}: {edit.message}",
                "remedy": "mend the cause, then `lakesync dlq retry --app FILE`; or give the change up: `drop`",
            }


def _actions(client: Any) -> Iterator[dict[str, Any]]:
    for queued in client.coordinator.actions.all("failed"):
        action = queued.action
        yield {
            "id": f"{ACTION}:{queued.action_id}",
            "kind": ACTION,
            "table": None,
            "what": f"{action.action_type} by {action.connector}, tried {queued.attempts} times",
            "why": f"{queued.code}: {queued.message}",
            "remedy": "mend the cause, then `lakesync dlq retry --app FILE`; or give the action up: `drop`",
        }


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    """The client of a file, which asks no gateway."""
    from lakesync.client.opening import open_client
    from lakesync.client.store_sqlite import stored_position, stored_schemas
    from lakesync.client.transports.http import HttpTransport

    if not path.is_file():
        raise ConfigurationError(f"{path} is no file: name the database that your app opens with lakesync.open")
    try:
        with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as db:
            position, schemas = stored_position(db), stored_schemas(db)
    except sqlite3.Error as error:
        raise ConfigurationError(f"{path} cannot be read as an app's database: {error}") from error
    if not position.client_id:
        raise ConfigurationError(f"{path} was never opened with lakesync.open: it has nothing set aside")
    nowhere = HttpTransport("http://127.0.0.1:9", position.gateway)
    with open_client(path, transport=nowhere, client_id=position.client_id, schemas=schemas) as client:
        yield client
