"""The interfaces between LakeSync and a type of connector: what a package implements to add one.

A gateway is one app's stream of changes. A connector connects it with an external system, such as Jira or a database.
A poll reads the system's rows from a `Source`, writes them to the lake's table `landing`, and pushes what has changed
to the gateway, from which clients pull it. Actions let clients do something in the system, such as creating an issue.
A `ConnectorType` opens both from the connector's configuration.

A poll reads the changes since the last poll's cursor. In some polls a source is also asked for a census, a list of all
row ids, which finds deletes that it does not report: rows that are known and not listed. A probe is a quick check of a
source, such as whether its credentials are accepted. The pipeline's poll tasks call the source,
`lakesync connectors test` its probes, and `lakesync.connectors.registry` the types. `docs/connectors.md` is the guide
for authors.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple, Protocol, runtime_checkable

from lakesync.connectors.host_policy import HostPolicy
from lakesync.model.action_handlers import ActionDescriptor, ActionHandler, ConnectorDescriptor
from lakesync.model.delta import jcs
from lakesync.model.errors import ConfigurationError
from lakesync.model.schema import Column, TableSchema

Cursor = Mapping[str, Any]
"""A position in a source: a JSON object that only the connector interprets."""


class SourceRow(NamedTuple):
    """A complete row as the source has it now."""

    row_id: str
    columns: Mapping[str, Any]
    """Column → JSON value."""


def changed_columns(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    """Return the columns that differ between two versions of a row, with the later values; null for missing ones.

    This comparison is the core of the poll's diff, which `lakehouse.landing` computes.

    Args:
        before: columns of the earlier version.
        after: columns of the later version.
    """
    return {name: after.get(name) for name in {**before, **after} if _differ(before.get(name), after.get(name))}


@dataclass(frozen=True)
class Page:
    """Some changes of one table. The poll writes a page with its cursor to the lake completely, or not at all."""

    table: str
    rows: Sequence[SourceRow]
    cursor: Cursor | None = None
    """Where to continue after this page was written; None keeps the previous cursor."""
    deleted: Sequence[str] = ()
    """Row ids that the source reports as deleted."""
    complete: Sequence[tuple[str, str]] = ()
    """`(column, value)` pairs for which the page is complete: other known rows with this value are deleted."""


class Census(NamedTuple):
    """A list of all rows that a table has now."""

    column: str | None
    """The column whose values are listed; None for the row id. For example, Jira's comments are listed by the column
    `issue_key`: all comments of an issue that is not listed were deleted."""
    values: Iterator[Sequence[str]]
    """All values of the column, in pages."""


class Usage(NamedTuple):
    """API calls made, and the remaining budget."""

    calls: int
    left: int | None = None
    """Remaining calls; None if the source reports no budget."""
    limit: int | None = None
    """The whole budget; None if the source reports none."""


class Table(NamedTuple):
    """A synced table that a source fills."""

    name: str
    identity: str | None = None
    """A column that identifies a row even when its row id changes: a row with the same value replaces the other row."""
    schema: Callable[[], TableSchema | None] = lambda: None
    """Returns the schema to register if the gateway has none yet, or None; called after the first rows were written."""
    needs_census: bool = False
    """Whether every poll takes a census. Otherwise one is taken at intervals (`censusIntervalMs` of `ingest`)."""
    origin: str = ""
    """The external system that has the rows, and whatever else a cursor depends on. If the connector is registered
    again with another origin, the next poll reads all rows and takes a census."""


class Source(Protocol):
    """A connector's source during one poll. It is used by one caller at a time and closed at the end.

    Methods raise errors of `lakesync.model.errors`: terminal ones that a person must fix (`AuthError`,
    `ForbiddenError`, `ConfigurationError`), and transient ones (`RateLimitedError`, `AdapterError`).

    Three members are optional: `probes()`, see `probes_of`; `split`, see `ParallelSource`; and
    `resumable = True` for a source that can continue after any page from that page's cursor, so that a long read is
    written in parts.
    """

    @property
    def tables(self) -> Sequence[Table]:
        """The tables, in the order in which they are polled."""

    @property
    def usage(self) -> Usage:
        """The calls made so far."""

    def changes(self, table: str, cursor: Cursor | None) -> Iterator[Page]:
        """Yield changes after a cursor; without a cursor, all rows.

        Unchanged rows may be returned again; no change may be missed. All pages belong to `table`.
        """

    def census(self, table: str) -> Census | None:
        """Return all rows that are there now; None if `changes` reports all deletes."""

    def read(self, table: str, row_ids: Sequence[str]) -> Iterator[Page]:
        """Yield new rows that a census of row ids found, with their dependent rows in other tables.

        Args:
            table: one of `tables`.
            row_ids: ids of the new rows.
        """

    def find_deleted(self, table: str, rows: Sequence[SourceRow]) -> set[str]:
        """Return the ids of those rows that are certainly deleted or outside the filter.

        Rows that may exist but are hidden from this account must not be returned.

        Args:
            table: one of `tables`.
            rows: known rows that a census does not list.
        """

    def close(self) -> None:
        """Close the connections."""


class TablePart(Protocol):
    """A part of a large table that any process can read independently. It can be pickled."""

    def pages(self) -> Iterator[Sequence[SourceRow]]:
        """Yield its rows in pages."""


class ParallelRead(NamedTuple):
    """A whole table divided into parts that are read in parallel."""

    parts: Sequence[TablePart]
    cursor: Cursor
    """Where to continue after all parts were written."""


@runtime_checkable
class ParallelSource(Protocol):
    """A source that can divide the read of a whole table, so that Spark's tasks read the parts at the same time."""

    def split(self, table: str, cursor: Cursor | None) -> ParallelRead | None:
        """Return a whole table in parts; None if it must be read with `changes`.

        Args:
            table: one of `tables`.
            cursor: where the last poll ended; with one, most sources return None, because only changes are read.
        """


class Probe(NamedTuple):
    """One quick check of a source."""

    name: str
    """`credentials`, `clock`, `permissions`, or the table of which a page is read."""
    run: Callable[[], str]
    """Returns the result as a sentence, or raises an error of `lakesync.model.errors`."""


def probes_of(source: Source) -> Sequence[Probe]:
    """Return the probes of the source's method `probes`; if it has none, a probe that reads a page of each table."""
    own = getattr(source, "probes", None)
    if own is not None:
        return tuple(own())
    return [Probe(table.name, partial(_first_page, source, table.name)) for table in source.tables]


def describe_clock_skew(source_ms: float, owner: str, now_ms: Callable[[], float] = lambda: time.time() * 1000) -> str:
    """Describe the difference between a source's clock and this machine's.

    Args:
        source_ms: the source's time, in milliseconds since 1970.
        owner: the clock's owner in the possessive, such as "the site's".
        now_ms: returns this machine's time, in milliseconds since 1970.
    """
    seconds = round((source_ms - now_ms()) / 1000)
    if abs(seconds) < 5:
        return f"{owner} clock agrees with this machine's"
    relation = "ahead of" if seconds > 0 else "behind"
    return (
        f"{owner} clock is {abs(seconds)} s {relation} this machine's. Polls use {owner} clock only, so no change is "
        "missed. Check which clock is wrong."
    )


@dataclass(frozen=True)
class ConnectorConfig:
    """A connector's configuration with secrets in plain text. Its `repr` does not show them."""

    gateway: str
    """The id of the gateway that it belongs to."""
    name: str
    type: str
    settings: Mapping[str, Any] = field(repr=False)
    """As the type's `config_schema` describes."""
    ingest: Mapping[str, Any] | None = None
    """As the type's `ingest_schema` describes; None if the connector is not polled."""
    hosts: HostPolicy = field(default_factory=HostPolicy)
    """The hosts that connectors of this server may call."""
    may_use_server_identity: bool = False
    """Whether the connector may use the cloud identity of the server's process, instead of credentials of its own."""


def _no_handler(config: ConnectorConfig) -> ActionHandler:
    """Raise ConfigurationError; the default for a type without actions."""
    raise ConfigurationError(f"connectors of type {config.type!r} support no actions")


def _no_source(config: ConnectorConfig) -> Source:
    """Raise ConfigurationError; the default for a type that is not polled."""
    raise ConfigurationError(f"connectors of type {config.type!r} are not polled")


@dataclass(frozen=True)
class ConnectorType:
    """A type of connector. Packages add types with entry points of the group `lakesync.connectors`."""

    descriptor: ConnectorDescriptor
    """The type's name, the JSON Schemas of its settings, and the tables that its polls fill."""
    actions: tuple[ActionDescriptor, ...] = ()
    """The actions that its connectors support."""
    make_handler: Callable[[ConnectorConfig], ActionHandler] = _no_handler
    """Returns the handler that executes an action. It is called for each action, so it must be fast, and must not leave
    connections open."""
    open_source: Callable[[ConnectorConfig], Source] = _no_source
    """Returns the source that a poll reads. It is called for each poll, which closes the source."""
    switches: Mapping[str, str] = field(default_factory=dict)
    """Output table → the boolean setting that turns its polling off."""

    def polled_tables(self, settings: Mapping[str, Any], ingest: Mapping[str, Any] | None) -> tuple[str, ...]:
        """Return the tables that a connector's polls fill, according to its settings; empty if it is not polled.

        Args:
            settings: the connector's settings.
            ingest: its `ingest` settings; None if it is not polled.
        """
        if ingest is None:
            return ()
        if self.descriptor.output_tables is None:  # the user chooses them
            return tuple(each["table"] for each in ingest.get("tables", ()))
        tables = [schema.table for schema in self.descriptor.output_tables]
        return tuple(table for table in tables if settings.get(self.switches.get(table, ""), True))


def value_at(values: Mapping[str, Any], path: Iterable[str]) -> Any:
    """Return the value at a path in a JSON object; None if the path leads to nothing.

    Args:
        values: the object.
        path: the names of nested fields, outermost first.
    """
    value: Any = values
    for name in path:
        value = value.get(name) if isinstance(value, Mapping) else None
    return value


def object_schema(properties: Mapping[str, Any], *required: str, **more: Any) -> dict[str, Any]:
    """Return the JSON Schema of an object that has no other properties than the given ones.

    Args:
        properties: property → its JSON Schema.
        required: the properties that every object must have.
        more: further keywords of the schema.
    """
    return {
        "type": "object",
        "properties": dict(properties),
        "required": list(required),
        **more,
        "additionalProperties": False,
    }


def text_table(name: str, columns: Iterable[str], **references: str) -> TableSchema:
    """Return a schema whose columns are all strings.

    Args:
        name: the table.
        columns: the column names.
        references: column → the `TABLE.COLUMN` that it references.
    """
    return TableSchema(name, tuple(Column(each, "string", references.get(each)) for each in columns))


def _differ(before: Any, after: Any) -> bool:
    """Return whether two JSON values differ: 1 and 1.0 are equal, 1 and true are not."""
    if isinstance(before, str) and isinstance(after, str):
        return before != after
    # In canonical form (RFC 8785), different integers beyond 2**53 may be equal; in Python, 1 and True are.
    return jcs(before) != jcs(after) or before != after


def _first_page(source: Source, table: str) -> str:
    """Read a page of a table, and return the number of its rows as a sentence: the default probe."""
    page = next(source.changes(table, None), None)
    return f"{0 if page is None else len(page.rows)} rows on the first page"
