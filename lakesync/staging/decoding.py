"""What stores keep as JSON, read back.

The decoders are made here, by the thread that imports: msgspec keeps what it knows of a type with the type, and a
thread that decodes one while another looks at it for the first time reads what is not there yet, and dies.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from lakesync.model.schema import TableSchema
from lakesync.rules.model import SyncRules
from lakesync.staging.records import ClientRecord, Cut, SchemaVersion


class CutRules(msgspec.Struct, frozen=True):
    """What a cut says of rules, without its tables."""

    rules_version: int


decode_client = msgspec.json.Decoder(ClientRecord).decode
decode_cut = msgspec.json.Decoder(Cut).decode
decode_cut_rules = msgspec.json.Decoder(CutRules).decode
decode_rules = msgspec.json.Decoder(SyncRules).decode
_decode_schema = msgspec.json.Decoder(TableSchema | None).decode
RETIRED = b"null"
"""The body of a schema that was retired."""


def decode_schemas(rows: Iterable[tuple[str, int, bytes]]) -> tuple[dict[str, SchemaVersion], dict[str, int]]:
    """A gateway's schemas, and the versions at which others were retired.

    Args:
        rows: table, version and body of each.
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
