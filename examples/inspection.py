"""A field inspection to-do list for the terminal: it works without a network, and `sync` sends what was changed.

`sync` calls a gateway, LakeSync's server, which passes the changes on to other inspectors.

    export LAKESYNC_REMOTE_URL=https://sync.example.com LAKESYNC_REMOTE_GATEWAY=inspections LAKESYNC_TOKEN=…
    python -m examples.inspection add "Bridge 12" "Check the north bearing"
    python -m examples.inspection list
    python -m examples.inspection done 1 --note "replaced"
    python -m examples.inspection sync

Everything is kept in the file inspections.db in the working folder, an SQLite database that any tool may read and
write.
"""

from __future__ import annotations

import argparse
import os
import sys

import lakesync
from lakesync.client import Client, UnreachableError
from lakesync.model.errors import LakeSyncError

CHECKS = {
    "table": "checks",
    "columns": [
        {"name": "site", "type": "string"},
        {"name": "task", "type": "string"},
        {"name": "done", "type": "boolean"},
        {"name": "note", "type": "string"},
        {"name": "by_whom", "type": "string"},
    ],
}
"""The schema of the synced table."""
Row = dict[str, object]


def open_database(path: str) -> Client:
    """Open the inspector's database; the token names the inspector."""
    return lakesync.open(
        path,
        url=os.environ.get("LAKESYNC_REMOTE_URL", "http://127.0.0.1:8787"),
        gateway=os.environ.get("LAKESYNC_REMOTE_GATEWAY", "inspections"),
        token=os.environ.get("LAKESYNC_TOKEN"),
        client_id=os.environ.get("LAKESYNC_CLIENT"),
        schemas=[CHECKS],
        timeout=5,
    )


def open_checks(db: Client) -> list[Row]:
    """Return open checks in the order in which they were added."""
    return db["checks"].rows("NOT done", order_by="site, row_id")


def add(db: Client, options: argparse.Namespace) -> None:
    """Add a check."""
    db["checks"].insert(site=options.site, task=options.task, done=False, by_whom=db.client_id)


def done(db: Client, options: argparse.Namespace) -> None:
    """Complete a check, by its number in the list."""
    checks = open_checks(db)
    if not 1 <= options.number <= len(checks):
        raise SystemExit(f"there is no check {options.number}: the list has {len(checks)}")
    row_id = str(checks[options.number - 1]["row_id"])
    db["checks"].update(row_id, done=True, note=options.note, by_whom=db.client_id)


def show(db: Client, _: argparse.Namespace) -> None:
    """Print open checks, and what is not sent yet."""
    for number, check in enumerate(open_checks(db), 1):
        print(f"{number:>3}  {check['site']}: {check['task']}")
    finished = len(db["checks"].rows("done"))
    print(f"{finished} done, {db.status.pending} changes not sent yet")


def sync(db: Client, _: argparse.Namespace) -> None:
    """Sync, and print changes that the gateway rejected; they stay in the database."""
    try:
        report = db.sync()
    except UnreachableError:
        raise SystemExit(f"no network: {db.status.pending} changes are kept and sent next time") from None
    print(f"sent {report.pushed}, received {report.pulled}")
    for edit in report.refused:
        print(f"refused: {edit.delta.row_id}: {edit.message}", file=sys.stderr)


def history(db: Client, options: argparse.Namespace) -> None:
    """Print who wrote what to a check, by its number in the list."""
    row_id = str(open_checks(db)[options.number - 1]["row_id"])
    for version in db.history("checks", row_id):
        print(f"{version.at:%Y-%m-%d %H:%M}  {version.client_id}  {version.columns}  {version.status}")


def main(arguments: list[str] | None = None) -> None:
    """Run a command of the command line; `arguments` are None for those of this process."""
    parser = argparse.ArgumentParser(prog="inspection", description="A field inspection to-do list, offline first.")
    parser.add_argument("--database", default="inspections.db", metavar="FILE")
    commands = parser.add_subparsers(required=True)
    for name, command in {"add": add, "list": show, "done": done, "sync": sync, "history": history}.items():
        each = commands.add_parser(name, help=command.__doc__)
        each.set_defaults(command=command)
        if name == "add":
            each.add_argument("site")
            each.add_argument("task")
        if name in ("done", "history"):
            each.add_argument("number", type=int)
        if name == "done":
            each.add_argument("--note")
    options = parser.parse_args(arguments)
    try:
        with open_database(options.database) as db:
            options.command(db, options)
    except LakeSyncError as error:
        raise SystemExit(f"{error.code}: {error}") from error


if __name__ == "__main__":
    main()
