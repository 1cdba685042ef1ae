"""The part of `SyncGateway` for its configuration: table schemas, sync rules, and the write scope.

A *gateway* is one app's stream of changes. A *schema* has the columns of a synced table, whose current rows are also in
a *state table* of the *lake* (Iceberg tables). *Sync rules* decide which rows a client sees, and put rows into buckets
for that. The *write scope* says to which rows clients may push. After a change of the rules, a *re-index* computes in
the background which of the rules' buckets each row belongs to. The admin routes of `gateway/`, `lakesync.toml` (by
`gateway.bootstrap`) and embedding apps call these methods.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lakesync.engine.active_rules import Reindexer
from lakesync.engine.checks import EngineLimits
from lakesync.engine.gateway_base import GatewayBase, SharedParts
from lakesync.model.schema import TableSchema, parse_schema
from lakesync.rules.model import SyncRules
from lakesync.staging.records import GatewayConfig, WriteScope
from lakesync.staging.store import StagingStore
from lakesync.staging.store.operations import ConfigCommit


class ConfigurationGateway(GatewayBase):
    """A base class of `SyncGateway` with the methods for its configuration; it is never used alone."""

    def __init__(self, gateway_id: str, store: StagingStore, limits: EngineLimits, shared: SharedParts) -> None:
        """Create the re-index; see `GatewayBase` for the arguments."""
        super().__init__(gateway_id, store, limits, shared)
        self.declared_write_scope = limits.write_scope
        """The configured write scope: which rows clients may push to, unless `set_write_scope` was called."""
        self._reindexer = Reindexer(gateway_id, store, self.rules, limits.reindex_rows)

    def config(self) -> GatewayConfig:
        """Return the gateway's configuration: registered schemas, active sync rules, and the write scope."""
        return self._store.gateway_config(self.gateway_id)

    def register_schema(self, schema: TableSchema | Mapping[str, Any]) -> int:
        """Register a table's schema, or add nullable columns to the registered one. A repeat changes nothing.

        Args:
            schema: the whole schema, parsed or as a decoded JSON object.

        Returns:
            The version of the schema.

        Raises:
            SchemaError: the schema is invalid, removes or changes a column, or has a name that differs only in case
                from a name in the same namespace of the lake; the message names the column.
        """
        parsed = parse_schema(schema)

        def put(commit: ConfigCommit) -> int:
            self.names.check_schema(commit, parsed)
            return commit.put_schema(parsed)

        return self._store.submit(self.gateway_id, put).result()

    def retire_schema(self, table: str) -> int:
        """Retire a table's schema: pushes to the table are no longer checked, and its state table gets no new columns.

        Rows, and the columns of the state table in the lake, stay.

        Returns:
            The version of this change; a schema that is registered later has a higher version.

        Raises:
            NotFoundError: the table has no schema.
        """
        return self._store.submit(self.gateway_id, lambda commit: commit.retire_schema(table)).result()

    def add_names(self) -> None:
        """Store the names in registered schemas, if any are missing; `Engine.open` calls it.

        Pushes and schemas with names that differ from stored ones only in case are rejected.
        """
        if self._store.read(self.gateway_id, self.names.lacks_registered).result():
            self._store.submit(self.gateway_id, self.names.add_registered).result()

    def ensure_schema(self, schema: TableSchema) -> bool:
        """Register a table's schema unless the table has one or had one that was retired.

        Returns:
            Whether the schema was registered.

        Raises:
            SchemaError: as `register_schema`.
        """
        config = self.config()
        if schema.table in config.schemas or schema.table in config.retired:
            return False
        self.register_schema(schema)
        return True

    def set_rules(self, rules: SyncRules) -> int:
        """Activate sync rules, and return their version. The version stays if these rules are active already.

        Rows that the new rules hide are not sent from now on. Each row is stored with bucket keys, by which the rules
        show it; a *re-index* in the background gives all rows their new keys. For a gateway with few rows, that is done
        when this returns.
        """

        def put(commit: ConfigCommit) -> int:
            return commit.config.rules_version if commit.config.rules == rules else commit.put_rules(rules)

        version = self._store.submit(self.gateway_id, put).result()
        self.continue_reindex()
        return version

    def continue_reindex(self) -> None:
        """Continue the re-index after a change of rules, if it is not done. Returns after two commits at most.

        `Engine.open` calls it too, because the process may have ended during a re-index.
        """
        if self._store.read(self.gateway_id, self.rules.is_reindexed).result():
            return
        progress = self._reindexer.submit().result()
        if not progress.done:
            progress = self._reindexer.submit(progress).result()
        if not progress.done:
            self._reindexer.start(progress)

    def set_write_scope(self, scope: WriteScope) -> None:
        """Set which rows clients may push to. The stored value overrides `declared_write_scope`."""
        self._store.submit(self.gateway_id, lambda commit: commit.put_write_scope(scope)).result()
