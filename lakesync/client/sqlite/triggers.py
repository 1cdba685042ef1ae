"""The SQL of the triggers that journal each write of the app to a synced table. `ChangeTracking` creates them.

A table's journal consists of two tables with a row for each row that the app has written. The *before* table has the
row before its first write (`there`: whether the row existed). The *after* table has it as it is now (`here`: whether
the row exists, `at`: when it was last written, in milliseconds). In both, `c_NAME` has the value of the column NAME.
Triggers are plain SQL, so they run on each connection of every program that opens the file.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from lakesync.client.sqlite.sql_values import ROW_ID_CONSTRAINT, VALUE_CONSTRAINTS
from lakesync.model.schema import TableSchema

NOW_MS = "CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)"
"""SQL for this machine's time in milliseconds."""

Operation = Literal["INSERT", "UPDATE", "DELETE"]


class TriggerKind(NamedTuple):
    """One of the triggers that each synced table has."""

    event: str
    """When it fires, in SQL."""
    droppable_during: Operation | None
    """The operation during which LakeSync may drop it; None: never."""


TRIGGERS = {
    "insert": TriggerKind("BEFORE INSERT", "INSERT"),
    "inserted": TriggerKind("AFTER INSERT", "INSERT"),
    "move": TriggerKind("BEFORE UPDATE OF row_id", None),
    "moved": TriggerKind("AFTER UPDATE OF row_id", None),
    "updated": TriggerKind("AFTER UPDATE", "UPDATE"),
    "deleted": TriggerKind("AFTER DELETE", "DELETE"),
}
"""The triggers of a table, by the end of their names.

`insert` journals a row that INSERT OR REPLACE is about to replace, `inserted` the new row. A change of a row id counts
as a delete and an insert: `move` journals what is at the new id before, `moved` that the old id is gone, and `updated`,
which fires too, the rest, and it counts the change. `updated` and `deleted` journal the row before and after."""
ANCHOR = "move"
"""The trigger whose row in `sqlite_master` (SQLite's catalogue) shows which table all of them are on: they journal
nothing if the app has renamed the table. It is never dropped alone."""
_CASES_PER_SELECT = 200
"""SQLite limits the length of a CASE expression."""


def before_table(table: str) -> str:
    """Return the quoted name of the journal of a table's rows before their first write."""
    return f'"_lakesync_before_{table}"'


def after_table(table: str) -> str:
    """Return the quoted name of the journal of the same rows as they are now."""
    return f'"_lakesync_after_{table}"'


def trigger_name(table: str, trigger: str) -> str:
    """Return the name of a table's trigger, given its key in `TRIGGERS`."""
    return f"_lakesync_{table}_{trigger}"


def trigger_statements(schema: TableSchema, anchor: int) -> dict[str, str]:
    """Return the statements that create a table's triggers, by trigger name.

    In SQLite the `OR REPLACE` of the app's statement overrides an `OR IGNORE` inside its triggers. So these use ON
    CONFLICT, which it does not override. The row after a write is read from the table, not from NEW, because a trigger
    of the app may have changed it.

    Args:
        schema: the table's schema.
        anchor: the rowid of the anchor trigger in `sqlite_master`. For triggers that do not exist yet, it is the next
            free rowid, and the caller creates the anchor first. VACUUM may change it; the triggers then search it.
    """
    table, before, after = schema.table, before_table(schema.table), after_table(schema.table)
    names = [column.name for column in schema.columns]
    cells = "".join(f', "c_{name}"' for name in names)
    current = "".join(f', "{name}"' for name in names)
    old = "".join(f', OLD."{name}"' for name in names)
    excluded = "".join(f', "c_{name}" = excluded."c_{name}"' for name in names)
    is_anchor = f"name = '{trigger_name(table, ANCHOR)}' AND tbl_name = '{table}' COLLATE NOCASE"
    is_tracked = (
        "NOT EXISTS (SELECT 1 FROM _lakesync_quiet) AND "  # LakeSync itself is not writing
        f"(EXISTS (SELECT 1 FROM sqlite_master WHERE rowid = {anchor} AND {is_anchor}) "  # the table was not renamed
        f"OR EXISTS (SELECT 1 FROM sqlite_master WHERE type = 'trigger' AND {is_anchor}))"
    )
    row = f'"{table}" AS app WHERE app.row_id = NEW.row_id'  # AS, because the table itself may be called `new`
    # Statements for the before table, which keeps the first version of a row: the row that a write is about to replace,
    # that there is no such row, and the row before an UPDATE or DELETE.
    keep_first = "ON CONFLICT (row_id) DO NOTHING;"
    journal_replaced = (
        f"INSERT INTO {before} (row_id, there{cells}) SELECT row_id, 1{current} FROM {row} "
        f"AND {is_tracked} {keep_first}"
    )
    journal_absent = f"INSERT INTO {before} (row_id, there) VALUES (NEW.row_id, 0) {keep_first}"
    journal_old = f"INSERT INTO {before} (row_id, there{cells}) VALUES (OLD.row_id, 1{old}) {keep_first}"
    # Statements for the after table, which keeps the last version: the row as it is now, and that it is deleted.
    journal_current = (
        f"INSERT INTO {after} (row_id, at, here{cells}) SELECT row_id, {NOW_MS}, 1{current} FROM {row} "
        f"ON CONFLICT (row_id) DO UPDATE SET at = excluded.at, here = 1{excluded};"
    )
    journal_deleted = (
        f"INSERT INTO {after} (row_id, at, here) VALUES (OLD.row_id, {NOW_MS}, 0) "
        "ON CONFLICT (row_id) DO UPDATE SET at = excluded.at, here = 0;"
    )
    count_change = f"UPDATE _lakesync_tables SET changes = changes + 1 WHERE tbl = '{table}';"
    id_changed = "NEW.row_id IS NOT OLD.row_id AND "
    column_changed = 'NEW."{0}" IS NOT OLD."{0}" AND '
    # trigger → condition that precedes `is_tracked` in its WHEN clause (None: no such clause), and its statements
    bodies = {
        "insert": (None, journal_replaced),
        "inserted": ("", _value_checks(schema, "") + journal_absent + journal_current + count_change),
        "move": (id_changed, _id_check(table) + journal_replaced + journal_absent),
        "moved": (id_changed, journal_deleted),
        "updated": ("", _value_checks(schema, column_changed) + journal_old + journal_current + count_change),
        "deleted": ("", journal_old + journal_deleted + count_change),
    }
    return {
        trigger_name(table, name): (
            f'CREATE TRIGGER "{trigger_name(table, name)}" {TRIGGERS[name].event} ON "{table}" '
            f"{'' if condition is None else f'WHEN {condition}{is_tracked} '}BEGIN {body} END"
        )
        for name, (condition, body) in bodies.items()
    }


def _id_check(table: str) -> str:
    """Return the statement of a trigger that rejects an invalid row id."""
    return f"SELECT CASE {_id_case(table)} END;"


def _id_case(table: str) -> str:
    """Return the case of an invalid row id, which aborts the write."""
    invalid, expected = ROW_ID_CONSTRAINT
    return f"WHEN {invalid.format('NEW.row_id')} THEN {_abort('row_id', table, expected)}"


def _value_checks(schema: TableSchema, if_changed: str) -> str:
    """Return statements that abort a write of an invalid value.

    Args:
        schema: the table's schema.
        if_changed: a condition with `{0}` for the column, for updates; empty for inserts, which also check the row id.
    """
    table = schema.table
    cases = [] if if_changed else [_id_case(table)]
    for column in schema.columns:
        invalid, expected = VALUE_CONSTRAINTS[column.type]
        condition = if_changed.format(column.name) + f"({invalid})".format(f'NEW."{column.name}"')
        cases.append(f"WHEN {condition} THEN {_abort(column.name, table, expected)}")
    chunks = [cases[start : start + _CASES_PER_SELECT] for start in range(0, len(cases), _CASES_PER_SELECT)]
    return "".join(f"SELECT CASE {' '.join(chunk)} END;" for chunk in chunks)


def _abort(name: str, table: str, expected: str) -> str:
    """Return the SQL that aborts a write, with a message: which column of which table takes what."""
    subject = name if name == "row_id" else f"column {name}"
    return f"RAISE(ABORT, 'lakesync: {subject} of {table} takes {expected}')"
