"""A gateway's configuration that was set at run time, and the position of the re-index that follows new rules."""

from __future__ import annotations

from typing import Literal

import msgspec

from lakesync.model.schema import TableSchema
from lakesync.model.types import RowKey
from lakesync.rules.model import SyncRules

WriteScope = Literal["any", "visible", "rules"]
"""Which rows a client may push to. `any`: every row. `visible`: rows that its sync rules show it, and new rows.
`rules`: like `visible`, and the rules must show it the row after the push too."""


class SchemaVersion(msgspec.Struct, frozen=True):
    """A registered schema; versions count from 1."""

    version: int
    schema: TableSchema


class GatewayConfig(msgspec.Struct, frozen=True):
    """Schemas, rules and write scope of a gateway; `version` is incremented by every change."""

    version: int
    schemas: dict[str, SchemaVersion]
    rules: SyncRules | None
    rules_version: int
    """0 before the first rules; incremented by every change, unlike the version inside the rules."""
    write_scope: WriteScope | None = None
    """Which rows a client may push to; None if it was not set at run time."""
    retired: dict[str, int] = {}
    """Table to the version at which its schema was retired; a later schema of the table has a higher version."""


class Reindex(msgspec.Struct, frozen=True):
    """The position of a re-index, which updates the bucket keys of all rows after a change of rules."""

    rules_version: int
    """The rules for which the re-index was started."""
    after: RowKey | None
    """Rows up to here, in key order, are updated, and so are rows that were pushed since."""
    done: bool
    """Whether all rows are updated."""
