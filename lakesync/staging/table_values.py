"""Converts records to and from the values of database tables, for both stores: on SQLite and on Postgres.

The views (reads) and commits (transactions) of both stores inherit from `SqlQueries`, and implement `_query`, so that
`side_tables`, `erasure_tables` and `rebuild_commit` run the same SQL on either. The *log* has one row for each push, a
client's request with deltas (changes of rows). A *gateway* is one app's stream of changes; its *head* has its counters.
A *claim* is a field of a client's token; *sync rules* decide by it which rows the client sees. An *arrival* is the
gateway's timestamp of a commit. A schema is *retired* when it is withdrawn.

All decoders are created when the module is imported. msgspec caches type information on the type while it creates a
decoder, and a thread that decodes the same type at that moment may crash. So no decoder is created later.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from typing import Any, TypeVar

import msgspec

from lakesync.model.schema import TableSchema
from lakesync.model.types import Claims
from lakesync.rules.model import SyncRules
from lakesync.staging.head import Head, HeadView
from lakesync.staging.ledger import signed, tally_of
from lakesync.staging.records import Checkpoint, ClientRecord, GatewayConfig, LogEntry, SchemaVersion, WriteScope
from lakesync.wire.log import PackedDeltas

T = TypeVar("T")

MAX_VALUES = 500
"""The most values of a list in one statement."""


def next_entry(head: Head, client_id: str, deltas: PackedDeltas, arrival: int, claims: Claims) -> LogEntry:
    """Return the log row of a push, with the sequence number that follows the head's.

    Args:
        head: the gateway's head (its newest sequence number, arrival and configuration) before the push.
        client_id: the id of the client that pushes.
        deltas: the push's deltas, encoded; they have no body if the lake contains them already.
        arrival: the push's arrival, the gateway's own timestamp of its commit.
        claims: the sender's claims that the rules read.
    """
    return LogEntry(
        gateway=head.gateway,
        shard=head.shard,
        epoch=head.epoch,
        seq=head.last_seq + 1,
        arrival=arrival,
        client_id=client_id,
        hlc_low=deltas.hlc_low,
        hlc_high=deltas.hlc_high,
        count=deltas.number,
        ids=deltas.ids,
        body=deltas.body,
        claims=claims,
    )


def row_of(entry: LogEntry, committed_ms: int) -> tuple[Any, ...]:
    """Return the values of table `log`, in the order of its columns.

    Args:
        entry: the log row.
        committed_ms: the server's wall time of the commit, in milliseconds since 1970.
    """
    *fields, ids, body, claims = msgspec.structs.astuple(entry)  # the first columns are these fields
    computed = (signed(tally_of(ids).id_sum), size_of(entry), committed_ms)
    return (*fields, *computed, msgspec.json.encode(claims), ids, body)


def size_of(entry: LogEntry) -> int:
    """Return the stored bytes of a log row's body; 0 without one."""
    return len(entry.body or b"")


class CheckpointRules(msgspec.Struct, frozen=True):
    """The rules version of a stored checkpoint, decoded without its tables."""

    rules_version: int


# bytes of a table's column to a record
decode_client = msgspec.json.Decoder(ClientRecord).decode
decode_checkpoint = msgspec.json.Decoder(Checkpoint).decode
decode_checkpoint_rules = msgspec.json.Decoder(CheckpointRules).decode
_decode_rules = msgspec.json.Decoder(SyncRules).decode
_decode_schema = msgspec.json.Decoder(TableSchema | None).decode
RETIRED = b"null"
"""The stored body of a retired schema."""


def decode_config(
    version: int,
    rules: bytes | None,
    rules_version: int,
    write_scope: WriteScope | None,
    schemas: Iterable[tuple[str, int, bytes]],
) -> GatewayConfig:
    """Return a gateway's configuration.

    Args:
        version: the configuration's version.
        rules: the stored sync rules, as JSON; None if none were activated.
        rules_version: the version of the rules; 0 without rules.
        write_scope: which rows clients may push to; None if none was set.
        schemas: table, version and stored body of each schema; the body of a retired one is `RETIRED`.
    """
    active: dict[str, SchemaVersion] = {}
    retired: dict[str, int] = {}
    for table, schema_version, body in schemas:
        schema = _decode_schema(body)
        if schema is None:
            retired[table] = schema_version
        else:
            active[table] = SchemaVersion(schema_version, schema)
    return GatewayConfig(
        version=version,
        schemas=active,
        retired=retired,
        rules=_decode_rules(rules) if rules is not None else None,
        rules_version=rules_version,
        write_scope=write_scope,
    )


class SqlQueries(HeadView):
    """A view or commit of one gateway that can run a statement in the database that contains its log."""

    @abstractmethod
    def _query(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        """Run a statement and return the rows of a SELECT.

        Args:
            statement: SQL that both SQLite and Postgres understand, with `?` for each value. The first `?` is for the
                gateway's id, which the implementation adds.
            values: the other values, in order.

        Returns:
            The rows; empty for a statement that returns none.

        Raises:
            sqlite3.Error, psycopg.Error: the statement failed; the store rolls back and maps the error.
        """
