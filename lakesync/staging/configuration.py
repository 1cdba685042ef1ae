"""What a gateway's configuration becomes by a schema or by rules."""

from __future__ import annotations

import msgspec

from lakesync.model.errors import NotFoundError, SchemaError
from lakesync.model.schema import TableSchema, evolve
from lakesync.rules.model import SyncRules
from lakesync.staging.records import GatewayConfig, SchemaVersion, WriteScope


def with_schema(config: GatewayConfig, schema: TableSchema) -> GatewayConfig:
    """With a schema registered or evolved; `config` itself where nothing changes.

    Raises:
        SchemaError: the change is not additive, or another table's name differs in case alone.
    """
    known = config.schemas.get(schema.table)
    if known is None:
        for other in config.schemas:
            if other.lower() == schema.table.lower():
                raise SchemaError(f"table {schema.table!r} differs from {other!r} only in case: choose another name")
        registered = SchemaVersion(config.retired.get(schema.table, 0) + 1, schema)
    else:
        evolved = evolve(known.schema, schema)
        if evolved == known.schema:
            return config
        registered = SchemaVersion(known.version + 1, evolved)
    schemas = {**config.schemas, schema.table: registered}
    retired = {table: version for table, version in config.retired.items() if table != schema.table}
    return msgspec.structs.replace(config, version=config.version + 1, schemas=schemas, retired=retired)


def without_schema(config: GatewayConfig, table: str) -> GatewayConfig:
    """With a table's schema retired, at a version of its own.

    Raises:
        NotFoundError: the table has none.
    """
    if table not in config.schemas:
        known = ", ".join(sorted(config.schemas)) or "none"
        raise NotFoundError(f"table {table!r} has no schema to retire; tables with one: {known}")
    schemas = {name: registered for name, registered in config.schemas.items() if name != table}
    retired = {**config.retired, table: config.schemas[table].version + 1}
    return msgspec.structs.replace(config, version=config.version + 1, schemas=schemas, retired=retired)


def with_rules(config: GatewayConfig, rules: SyncRules) -> GatewayConfig:
    """With other rules in force; each call is a new rules version."""
    return msgspec.structs.replace(
        config, version=config.version + 1, rules=rules, rules_version=config.rules_version + 1
    )


def with_write_scope(config: GatewayConfig, scope: WriteScope) -> GatewayConfig:
    """With another write scope in force."""
    return msgspec.structs.replace(config, version=config.version + 1, write_scope=scope)
