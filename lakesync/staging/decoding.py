"""Decoders of the JSON values in a store's tables, shared by both stores.

They are created here, when the module is imported. msgspec caches type information on the type while it creates a
decoder, and a thread that decodes the same type at that moment may crash. So no decoder is created later.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from lakesync.model.schema import TableSchema
from lakesync.rules.model import SyncRules
from lakesync.staging.records import ClientRecord, Cut, SchemaVersion


class CutRules(msgspec.Struct, frozen=True):
    """The rules version of a stored checkpoint, decoded without its tables."""

    rules_version: int


decode_client = msgspec.json.Decoder(ClientRecord).decode
decode_cut = msgspec.json.Decoder(Cut).decode
decode_cut_rules = msgspec.json.Decoder(CutRules).decode
decode_rules = msgspec.json.Decoder(SyncRules).decode
_decode_schema = msgspec.json.Decoder(TableSchema | None).decode
RETIRED = b"null"
"""The stored body of a retired schema."""


def decode_schemas(rows: Iterable[tuple[str, int, bytes]]) -> tuple[dict[str, SchemaVersion], dict[str, int]]:
    """Return a gateway's schemas by table, and the versions at which other tables' schemas were retired.

    Args:
        rows: table, version and stored body of each schema.
    """
    schemas: dict[str, SchemaVersion] = {}
    retired: dict[str, int] = {}
    for table, version, body in rows:
        schema = _decode_schema(body)
        if schema is None:
            retired[table] = version
        else:
            schemas[table] = SchemaVersion(version, schema)
    return schemas, retired
