"""What a gateway was told at run time, and how far its rows are in line with that."""

from __future__ import annotations

from typing import Literal

import msgspec

from lakesync.model.schema import TableSchema
from lakesync.model.types import RowKey
from lakesync.rules.model import SyncRules

WriteScope = Literal["any", "visible", "rules"]
"""Which rows a client may push to.

`any`: every row. `visible`: rows that its sync rules show it, and new ones. `rules`: as `visible`, and the rules must
show it the row after the push too.
"""


class SchemaVersion(msgspec.Struct, frozen=True):
    """A registered schema; versions count from 1."""

    version: int
    schema: TableSchema


class GatewayConfig(msgspec.Struct, frozen=True):
    """What a gateway was told at run time; `version` grows with every change."""

    version: int
    schemas: dict[str, SchemaVersion]
    rules: SyncRules | None
    rules_version: int
    """0 before rules were ever set; counts every change, unlike the version inside the rules."""
    write_scope: WriteScope | None = None
    """What a push may change, where it was set at run time."""
    retired: dict[str, int] = {}
    """Table → the version at which its schema was retired; versions of another schema follow it."""


class Reindex(msgspec.Struct, frozen=True):
    """How far a gateway's rows are brought in line with its rules."""

    rules_version: int
    """Of the rules that the re-index was begun for."""
    after: RowKey | None
    """Rows up to here, in key order, are certainly in line, and those pushed since."""
    done: bool
    """All rows are."""
