"""The only writer of the lake: `deltas`, the state tables, and cuts.

Every function takes the session of its caller and the lake's names, and is safe to repeat.
"""

from __future__ import annotations

from resources.lake.checks import DuplicateKey, LedgerDifference, duplicate_deltas, duplicate_keys, ledger_against_lake
from resources.lake.cuts import make_cut, state_as_of
from resources.lake.deltas import FlushReport, flush, flush_due, flushed_arrivals
from resources.lake.state import MergeReport, forget_marks, merge_table
from resources.lake.tables import LakeNames, StateTable, ensure_deltas, ensure_state

__all__ = [
    "DuplicateKey",
    "FlushReport",
    "LakeNames",
    "LedgerDifference",
    "MergeReport",
    "StateTable",
    "duplicate_deltas",
    "duplicate_keys",
    "ensure_deltas",
    "ensure_state",
    "flush",
    "flush_due",
    "flushed_arrivals",
    "forget_marks",
    "ledger_against_lake",
    "make_cut",
    "merge_table",
    "state_as_of",
]
