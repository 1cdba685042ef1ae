"""The tables beside the log, with the same SQL in both stores (SQLite and Postgres).

- The configuration: table schemas, sync rules (which rows a client may see), and the write scope.
- *Actions* (commands of clients) and attempts at them, and the *connectors* (external systems) that execute them.
- The position of a *re-index*, which assigns all rows to the sync rules after a change of these.
- The *broadcast cursors* of *sharded* gateways, whose tables are in several stores (shards). Such a cursor is sent to
  many clients at once, with a page over the WebSocket, and names a cursor in each shard.
- The spelling of table and column names in each *namespace* (the lake's schema with a gateway's tables), because the
  engines that read the lake ignore case.
- The *jobs* that update the destination's tables after a flush without a pipeline.

Erasures are in `erasure_tables`. The views (reads) and commits (transactions) of both stores inherit from `SideQueries`
and `SideStatements`; their `_query` adds the id of the gateway (one app's stream of changes) as the first value of each
statement. `staging.store.operations` and `staging.store.push` say what each method promises.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Collection, Mapping

import msgspec

from lakesync.model.parts import parts
from lakesync.model.schema import TableSchema
from lakesync.model.types import StoredConnector
from lakesync.rules.model import SyncRules
from lakesync.staging.erasure_tables import ErasureQueries, ErasureStatements
from lakesync.staging.head import Head
from lakesync.staging.notices import Announcement, Presence
from lakesync.staging.records import ActionEntry, ActionRecord, GatewayConfig, Reindex, WriteScope
from lakesync.staging.records.configuration import with_rules, with_schema, with_write_scope, without_schema
from lakesync.staging.table_values import MAX_VALUES, RETIRED, SqlQueries, decode_client

_PUT_NAME = (
    "INSERT INTO spelled_name (gateway, namespace, folded, spelled) VALUES (?, ?, ?, ?)"
    " ON CONFLICT (namespace, folded) DO NOTHING"
)
_GET_NAMES = "SELECT folded, spelled FROM spelled_name WHERE ? <> '' AND namespace = ? AND folded IN "
"""SQL: the spellings of names in a namespace. `? <> ''` takes the gateway, which is not needed."""

_GET_CURSOR = "SELECT parts FROM shared_cursor WHERE gateway = ? AND cursor = ?"
_NEWEST_CURSOR = "SELECT cursor FROM shared_cursor WHERE gateway = ? ORDER BY cursor DESC LIMIT 1"
_PUT_CURSOR = "INSERT INTO shared_cursor (gateway, cursor, parts) VALUES (?, ?, ?)"
_FORGET_CURSORS = "DELETE FROM shared_cursor WHERE gateway = ? AND cursor < ?"

_CLIENTS = "SELECT record FROM client WHERE gateway = ?"
_NO_ROWS = 1
"""The highest cursor that shows no rows: 0 of a client that was sent nothing, 1 if it pushed and was sent nothing."""

_decode_parts = msgspec.json.Decoder(dict[str, int]).decode

_PUT_REINDEX = (
    "INSERT INTO reindex (gateway, rules_version, table_name, row_id, done) VALUES (?, ?, ?, ?, ?)"
    " ON CONFLICT (gateway) DO UPDATE SET rules_version = excluded.rules_version,"
    " table_name = excluded.table_name, row_id = excluded.row_id, done = excluded.done"
)

_ADD_JOB = "INSERT INTO flush_job (gateway, set_aside, job_id, body) VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING"
_TAKE_JOB = "DELETE FROM flush_job WHERE gateway = ? AND set_aside = ? AND job_id = ? RETURNING body"
_LIST_JOBS = "SELECT body FROM flush_job WHERE gateway = ? AND set_aside = ? ORDER BY job_id LIMIT ?"

_ACTION = (
    "SELECT client_id, action_id, idempotency_key, attempts, claim, lease_ms, touched_ms, outcome FROM action"
    " WHERE gateway = ? AND client_id = ? AND"
)
_DROP_ACTION = "DELETE FROM action WHERE gateway = ? AND client_id = ? AND (action_id = ? OR idempotency_key = ?)"
"""SQL: delete the actions with an id or an idempotency key; no action has the key null."""
_ENTRIES = (
    "SELECT seq, at_ms, client_id, action_id, connector, action_type, attempt, code, ms FROM action_log"
    " WHERE gateway = ? AND seq < ? ORDER BY seq DESC LIMIT ?"
)
_NEWEST = "SELECT seq FROM action_log WHERE gateway = ? ORDER BY seq DESC LIMIT 1"
_NO_BOUND = (1 << 63) - 1
"""In place of a `seq` below which to read: it is above every one."""

_PUT_SCHEMA = (
    "INSERT INTO table_schema (gateway, table_name, version, body) VALUES (?, ?, ?, ?)"
    " ON CONFLICT (gateway, table_name) DO UPDATE SET version = excluded.version, body = excluded.body"
)
_PUT_CONFIG = (
    "INSERT INTO gateway (id, config_version, rules, rules_version, write_scope, epoch, arrival)"
    " VALUES (?, ?, ?, ?, ?, 0, 0) ON CONFLICT (id) DO UPDATE SET config_version = excluded.config_version,"
    " rules = excluded.rules, rules_version = excluded.rules_version, write_scope = excluded.write_scope"
)
"""SQL: replace the configuration of a gateway, which exists. It is no UPDATE, because the first value is its id."""
_decode_connector = msgspec.json.Decoder(StoredConnector).decode


class SideQueries(ErasureQueries):
    """The methods of a `View` that read the tables of this module."""

    # -- actions and connectors ----------------------------------------------------------------------------------------

    def action(self, client_id: str, action_id: str, idempotency_key: str | None = None) -> ActionRecord | None:
        """Return a client's action by its id, otherwise by its idempotency key; None if neither matches.

        Args:
            client_id: the client's id.
            action_id: the action's id.
            idempotency_key: the key by which to look if no action has the id; None for no further look.
        """
        rows = self._query(f"{_ACTION} action_id = ?", client_id, action_id)
        if not rows and idempotency_key is not None:
            rows = self._query(f"{_ACTION} idempotency_key = ?", client_id, idempotency_key)
        return ActionRecord(*rows[0]) if rows else None

    def action_log(self, before: int | None, limit: int) -> list[ActionEntry]:
        """Return attempts at actions, newest first.

        Args:
            before: return only attempts with a lower `seq`; None starts with the newest.
            limit: the most attempts to return.
        """
        rows = self._query(_ENTRIES, _NO_BOUND if before is None else before, limit)
        return [ActionEntry(*row) for row in rows]

    def connectors(self) -> list[StoredConnector]:
        """Return every registered connector, ordered by name."""
        rows = self._query("SELECT body FROM connector WHERE gateway = ? ORDER BY name")
        return [_decode_connector(body) for (body,) in rows]

    # -- the position of a re-index ------------------------------------------------------------------------------------

    def reindexing(self) -> Reindex | None:
        """Return the position of the latest re-index; None before the first."""
        rows = self._query("SELECT rules_version, table_name, row_id, done FROM reindex WHERE gateway = ?")
        if not rows:
            return None
        version, table, row_id, done = rows[0]
        return Reindex(version, None if table is None else (table, row_id), bool(done))

    # -- broadcast cursors of a sharded gateway ------------------------------------------------------------------------

    def shared_cursor(self, cursor: int) -> dict[str, int] | None:
        """Return the cursors by shard of a broadcast cursor; None if it is unknown or was deleted."""
        rows = self._query(_GET_CURSOR, cursor)
        return _decode_parts(rows[0][0]) if rows else None

    def newest_shared_cursor(self) -> int:
        """Return the highest stored broadcast cursor; 0 without one."""
        rows = self._query(_NEWEST_CURSOR)
        return int(rows[0][0]) if rows else 0

    def sent_rows_of_shard(self, shard: str) -> bool:
        """Return whether any client was sent rows of a shard, as the cursors show that clients were sent.

        This reads all client records. `ShardedStore` calls it when a shard's store is empty at the start: the store may
        have been lost.
        """
        broadcast = self.shared_cursor(self.newest_shared_cursor()) or {}
        if broadcast.get(shard, 0) > _NO_ROWS:
            return True
        of_clients = (decode_client(record).sent_cursors for (record,) in self._query(_CLIENTS))
        return any(
            name == shard and cursor > _NO_ROWS
            for sent_cursors in of_clients
            if sent_cursors is not None
            for vector in sent_cursors.vectors
            for name, cursor in vector.parts
        )

    # -- spelling of names ---------------------------------------------------------------------------------------------

    def name_spellings(self, namespace: str, names: Collection[str]) -> dict[str, str]:
        """Return the stored spelling of names, by their lower-case forms; unknown names are absent.

        Args:
            namespace: the namespace of the gateway's state tables in the lake.
            names: tables, and columns as `table.column`, in any case.
        """
        folded = sorted({name.lower() for name in names})
        spellings: dict[str, str] = {}
        for chunk in parts(folded, MAX_VALUES):
            spellings.update(self._query(f"{_GET_NAMES}({', '.join('?' * len(chunk))})", namespace, *chunk))
        return spellings

    # -- jobs after a flush without a pipeline -------------------------------------------------------------------------

    def flush_jobs(self, *, set_aside: bool, limit: int) -> list[bytes]:
        """Return encoded jobs, ordered by id.

        Args:
            set_aside: whether to return jobs that failed and were set aside, instead of waiting jobs.
            limit: the most jobs to return.
        """
        return [bytes(body) for (body,) in self._query(_LIST_JOBS, int(set_aside), limit)]


class ConfigStatements(SqlQueries):
    """The methods of a `Commit` that change the configuration (schemas, sync rules, the write scope) or the head.

    A schema is *retired* when it is withdrawn; pushes to its table are then not checked.
    """

    _wall: Callable[[], int]
    """Returns the server's wall time in milliseconds since 1970."""
    _announcement: Announcement
    """The notices that listeners get once the commit is visible."""

    @abstractmethod
    def run_alone(self) -> None:
        """Require that no other push or function is in this transaction; see `RowCommit.run_alone`."""

    @abstractmethod
    def _move_head(self, head: Head) -> None:
        """Replace the gateway's head; it is stored with the commit."""

    def next_arrivals(self, count: int) -> range:
        """Return `count` new arrivals, above all earlier ones."""
        head, arrivals = self._head.next_arrivals(count, self._wall())
        if count:
            self._move_head(head)
        return arrivals

    def announce_presence(self, presence: Collection[Presence]) -> None:
        """Notify all processes which clients are connected."""
        self._announcement.announce_presence(self.gateway, presence)

    def put_schema(self, schema: TableSchema) -> int:
        """Register a table's schema, or add columns to the registered one; see `ConfigCommit.put_schema`."""
        config = with_schema(self.config, schema)
        registered = config.schemas[schema.table]
        if config is not self.config:
            self._write_schema(schema.table, registered.version, registered.schema)
            self._write_config(config)
        return registered.version

    def retire_schema(self, table: str) -> int:
        """Retire a table's schema, and return the version of this change."""
        config = without_schema(self.config, table)
        self._write_schema(table, config.retired[table], None)
        self._write_config(config)
        return config.retired[table]

    def put_rules(self, rules: SyncRules) -> int:
        """Activate sync rules, and return their version; see `ConfigCommit.put_rules`."""
        # After a crash, the log's newest rows are applied again, under the rules that are active then. So all earlier
        # rows must be durable before the rules change.
        self.run_alone()
        config = with_rules(self.config, rules)
        self._write_config(config)
        self._announcement.all_changed(self.gateway)
        return config.rules_version

    def put_write_scope(self, scope: WriteScope) -> None:
        """Set which rows clients may push to."""
        self._write_config(with_write_scope(self.config, scope))

    def restore_config(self, config: GatewayConfig) -> None:
        """Store schemas, retired ones too, and sync rules with the versions that they had in the lost store."""
        for table, registered in config.schemas.items():
            self._write_schema(table, registered.version, registered.schema)
        for table, version in config.retired.items():
            self._write_schema(table, version, None)
        self._write_config(config)

    def _write_schema(self, table: str, version: int, schema: TableSchema | None) -> None:
        """Store a table's schema under its new version; None if it is retired."""
        self._query(_PUT_SCHEMA, table, version, RETIRED if schema is None else msgspec.json.encode(schema))

    def _write_config(self, config: GatewayConfig) -> None:
        """Store the configuration, without its schemas, and replace the head's."""
        rules = msgspec.json.encode(config.rules) if config.rules is not None else None
        self._query(_PUT_CONFIG, config.version, rules, config.rules_version, config.write_scope)
        self._move_head(msgspec.structs.replace(self._head, config=config))


class SideStatements(SideQueries, ConfigStatements, ErasureStatements):
    """The methods of a `Commit` that write the tables of this module."""

    # -- actions and connectors ----------------------------------------------------------------------------------------

    def put_action(self, record: ActionRecord) -> None:
        """Store an action's record; it replaces records with the same id or idempotency key."""
        self._query(_DROP_ACTION, record.client_id, record.action_id, record.idempotency_key)
        self._query(
            "INSERT INTO action (gateway, client_id, action_id, idempotency_key, attempts, claim, lease_ms, touched_ms,"
            " outcome) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
            *msgspec.structs.astuple(record),
        )

    def drop_actions(self, touched_before_ms: int) -> None:
        """Delete the actions whose latest change was before a server wall time, in milliseconds since 1970."""
        self._query("DELETE FROM action WHERE gateway = ? AND touched_ms < ?", touched_before_ms)

    def note_action(self, entry: ActionEntry, keep: int) -> int:
        """Add an attempt at an action to the log of attempts; return its `seq`, which counts from 1.

        Args:
            entry: the attempt; its `seq` is ignored.
            keep: how many of the newest attempts are kept; older ones are deleted.
        """
        newest = self._query(_NEWEST)
        seq: int = newest[0][0] + 1 if newest else 1
        numbered = msgspec.structs.replace(entry, seq=seq)
        self._query(
            "INSERT INTO action_log (gateway, seq, at_ms, client_id, action_id, connector, action_type, attempt, code,"
            " ms) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            *msgspec.structs.astuple(numbered),
        )
        self._query("DELETE FROM action_log WHERE gateway = ? AND seq <= ?", seq - keep)
        return seq

    def put_connector(self, connector: StoredConnector) -> None:
        """Store a connector; it replaces one with its name."""
        self.drop_connector(connector.name)
        self._query(
            "INSERT INTO connector (gateway, name, body) VALUES (?, ?, ?)",
            connector.name,
            msgspec.json.encode(connector),
        )

    def drop_connector(self, name: str) -> bool:
        """Delete a connector; return False if no connector has this name."""
        return bool(self._query("DELETE FROM connector WHERE gateway = ? AND name = ? RETURNING name", name))

    # -- the position of a re-index ------------------------------------------------------------------------------------

    def put_reindexing(self, position: Reindex) -> None:
        """Store the position of a re-index."""
        table, row_id = position.after or (None, None)
        self._query(_PUT_REINDEX, position.rules_version, table, row_id, int(position.done))

    # -- broadcast cursors of a sharded gateway ------------------------------------------------------------------------

    def put_shared_cursor(self, cursor: int, parts: Mapping[str, int], *, forget_below: int) -> None:
        """Store a broadcast cursor, and delete old ones.

        Args:
            cursor: the cursor that clients are sent.
            parts: the cursor in each shard that it names, by shard name.
            forget_below: stored broadcast cursors below this are deleted.
        """
        self._query(_FORGET_CURSORS, forget_below)
        self._query(_PUT_CURSOR, cursor, msgspec.json.encode(dict(parts)).decode())

    # -- spelling of names ---------------------------------------------------------------------------------------------

    def add_spellings(self, namespace: str, names: Collection[str]) -> Mapping[str, str]:
        """Add names that a namespace does not have in any case; return the stored spelling of all, by lower-case form.

        The table's primary key is the lock: if two commits add a name at the same time, the second waits for the first.

        Args:
            namespace: the namespace of the gateway's state tables in the lake.
            names: tables, and columns as `table.column`.
        """
        spellings = self.name_spellings(namespace, names)
        missing = sorted(name for name in names if name.lower() not in spellings)
        for name in missing:
            self._query(_PUT_NAME, namespace, name.lower(), name)
        return self.name_spellings(namespace, names) if missing else spellings

    # -- jobs after a flush without a pipeline -------------------------------------------------------------------------

    def add_flush_job(self, job_id: str, body: bytes, *, set_aside: bool) -> None:
        """Add a job, unless one with its id exists.

        Args:
            job_id: the job's id.
            body: the encoded job, as `lakesync.flush` encodes it.
            set_aside: whether the job failed and is set aside.
        """
        self._query(_ADD_JOB, int(set_aside), job_id, body)

    def take_flush_job(self, job_id: str, *, set_aside: bool) -> bytes | None:
        """Delete a job and return its body; None if there is no such job.

        Args:
            job_id: the job's id.
            set_aside: whether to look among the jobs that failed and were set aside, instead of the waiting ones.
        """
        rows = self._query(_TAKE_JOB, int(set_aside), job_id)
        return bytes(rows[0][0]) if rows else None
