"""A gateway's configuration that admins set at run time (schemas, sync rules, write scope), and the re-index.

A *gateway* is one app's stream of changes. The commits of the SQLite store and of the Postgres store change its
configuration with the pure functions here, and store the result. Sync rules decide which rows a client may see. Each
row is stored with *bucket keys*, which the rules compute: each names a bucket of the rules, with the claims that may
see it. After a change of the rules, a *re-index* computes these keys again for all rows, in the background.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from lakesync.model.errors import NotFoundError, SchemaError
from lakesync.model.schema import TableSchema, evolve
from lakesync.model.types import RowKey
from lakesync.rules.model import SyncRules

WriteScope = Literal["any", "visible", "rules"]
"""Which rows a client may push to. `any`: every row. `visible`: rows that its sync rules show it, and new rows.
`rules`: like `visible`, and the rules must show it the row after the push too."""


class SchemaVersion(msgspec.Struct, frozen=True):
    """A registered schema of a table, with its version."""

    version: int
    """Counts a table's registrations and retirements from 1."""
    schema: TableSchema


class GatewayConfig(msgspec.Struct, frozen=True):
    """Schemas, rules and write scope of a gateway. A new gateway has the defaults."""

    version: int = 0
    """0 for a new gateway; incremented by every change."""
    schemas: dict[str, SchemaVersion] = {}
    """Registered schemas, by table."""
    rules: SyncRules | None = None
    """The active sync rules; None if everyone may see every row."""
    rules_version: int = 0
    """0 before the first rules; incremented by every change, unlike the version inside the rules."""
    write_scope: WriteScope | None = None
    """Which rows a client may push to; None if it was not set at run time, and the settings file decides."""
    retired: dict[str, int] = {}
    """By table, the version at which its schema was retired: pushes to the table are no longer checked. A schema that
    is registered later has a higher version."""


class Reindex(msgspec.Struct, frozen=True):
    """How far a re-index is, which updates the bucket keys of all rows after a change of rules."""

    rules_version: int
    """The rules for which the re-index was started."""
    after: RowKey | None
    """Rows up to this key, in key order, are updated; None if none are yet. Rows that were pushed since the change are
    updated too, because a push computes the keys of its rows."""
    done: bool
    """Whether all rows are updated."""


def with_schema(config: GatewayConfig, schema: TableSchema) -> GatewayConfig:
    """Return the configuration with a table's schema registered, or with columns added to the registered schema.

    Args:
        config: the current configuration.
        schema: the whole schema of the table.

    Returns:
        The new configuration; `config` itself if nothing changes.

    Raises:
        SchemaError: the change removes or changes a column, or the table's name differs from a registered or retired
            one only in case.
    """
    current = config.schemas.get(schema.table)
    if current is None:
        for other in (*config.schemas, *config.retired):  # the lake has the tables of retired schemas too
            if other != schema.table and other.lower() == schema.table.lower():
                raise SchemaError(f"table {schema.table!r} differs from {other!r} only in case: choose another name")
        registered = SchemaVersion(config.retired.get(schema.table, 0) + 1, schema)
    else:
        evolved = evolve(current.schema, schema)
        if evolved == current.schema:
            return config
        registered = SchemaVersion(current.version + 1, evolved)
    schemas = {**config.schemas, schema.table: registered}
    retired = {table: version for table, version in config.retired.items() if table != schema.table}
    return msgspec.structs.replace(config, version=config.version + 1, schemas=schemas, retired=retired)


def without_schema(config: GatewayConfig, table: str) -> GatewayConfig:
    """Return the configuration with a table's schema retired, which counts as a version of the schema.

    Args:
        config: the current configuration.
        table: the table whose schema is retired.

    Raises:
        NotFoundError: the table has no schema.
    """
    if table not in config.schemas:
        tables = ", ".join(sorted(config.schemas)) or "none"
        raise NotFoundError(f"table {table!r} has no schema to retire; tables with one: {tables}")
    schemas = {name: registered for name, registered in config.schemas.items() if name != table}
    retired = {**config.retired, table: config.schemas[table].version + 1}
    return msgspec.structs.replace(config, version=config.version + 1, schemas=schemas, retired=retired)


def with_rules(config: GatewayConfig, rules: SyncRules) -> GatewayConfig:
    """Return the configuration with new sync rules; each call increments the rules version.

    Args:
        config: the current configuration.
        rules: the new rules.
    """
    return msgspec.structs.replace(
        config, version=config.version + 1, rules=rules, rules_version=config.rules_version + 1
    )


def with_write_scope(config: GatewayConfig, scope: WriteScope) -> GatewayConfig:
    """Return the configuration with a new write scope.

    Args:
        config: the current configuration.
        scope: which rows clients may push to.
    """
    return msgspec.structs.replace(config, version=config.version + 1, write_scope=scope)
