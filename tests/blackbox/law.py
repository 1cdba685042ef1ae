"""The laws that a gateway has to keep, written down a second time: the merge of rows, and what sync rules show.

Nothing here comes from the project; `spec.md` sections 3 and 6 are the source.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

Key = tuple[str, str]
"""A table and a row id."""
Values = dict[str, Any]
Delta = dict[str, Any]
"""A delta in JSON form, with `hlc` as an integer."""
NEVER = (-1, "")


def stamp(delta: Delta) -> tuple[int, str]:
    return int(delta["hlc"]), delta["clientId"]


def key_of(delta: Delta) -> Key:
    return delta["table"], delta["rowId"]


def id_sum(delta_ids: Iterable[str]) -> int:
    """The checksum by which the pipeline compares a batch in the lake with the log, modulo 2**64."""
    return sum(map(_id_number, delta_ids)) % 2**64


def _id_number(delta_id: str) -> int:
    digest = delta_id if re.fullmatch("[0-9a-f]{64}", delta_id) else hashlib.sha256(delta_id.encode()).hexdigest()
    return int(digest[:16], 16)


def erasing(key: Key, hlc: int) -> Delta:
    """The DELETE that erases a row: it overrides each delta up to its hlc, in any order of arrival.

    Its client id sorts after those of clients; its id is made as the reference makes those of deltas.
    """
    table, row_id = key
    delta = {"clientId": "~lakesync:erasure", "columns": [], "hlc": str(hlc), "rowId": row_id, "table": table}
    digest = hashlib.sha256(json.dumps(delta, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
    return {"op": "DELETE", "deltaId": digest, **delta}


def merge(deltas: Iterable[Delta]) -> Values | None:
    """Merge the deltas of one row (M1 to M3); None if the row is not visible."""
    deltas = list(deltas)
    dead = max((stamp(each) for each in deltas if each["op"] == "DELETE"), default=NEVER)
    cells: dict[str, tuple[tuple[int, str], str]] = {}
    inserted = False
    for each in deltas:
        if each["op"] == "DELETE" or stamp(each) <= dead:
            continue
        inserted |= each["op"] == "INSERT"
        for cell in each["columns"]:
            candidate = (stamp(each), json.dumps(cell["value"]))
            cells[cell["column"]] = max(candidate, cells.get(cell["column"], (NEVER, "")))
    if not cells and not inserted:
        return None
    return {column: json.loads(text) for column, (_, text) in cells.items()}


def shows(rules: Mapping[str, Any] | None, table: str, row: Values, claims: Mapping[str, Any]) -> bool:
    """Whether rules show a row to a client with these claims."""
    buckets = rules["buckets"] if rules else []
    return not buckets or any(
        (not bucket["tables"] or table in bucket["tables"])
        and all(_meets(condition, row, claims) for condition in bucket["filters"])
        for bucket in buckets
    )


def _meets(condition: Mapping[str, str], row: Values, claims: Mapping[str, Any]) -> bool:
    if condition["column"] not in row:
        return False
    value, op = row[condition["column"]], condition["op"]
    text = value if isinstance(value, str) else json.dumps(value)
    wanted: Any = condition["value"]
    if wanted.startswith("jwt:"):
        wanted = claims.get(wanted[4:])
    operands = [wanted] if isinstance(wanted, str) else list(wanted or ())
    if not operands:
        return False
    if op in ("eq", "in"):
        return text in operands
    if op == "neq":
        return text not in operands
    if op == "gt":
        return _numbers(text, operands[0]) if _is_number(text) and _is_number(operands[0]) else text > operands[0]
    raise ValueError(f"op {op!r} is not one of this test's")


def _is_number(text: str) -> bool:
    return text.lstrip("-").isdigit()


def _numbers(left: str, right: str) -> bool:
    return int(left) > int(right)


class Ledger:
    """Every acknowledged delta of a gateway, and the rows that follow from them."""

    def __init__(self) -> None:
        self.rules: Mapping[str, Any] | None = None
        self._of_row: dict[Key, list[Delta]] = {}
        self._known: set[tuple[str, int, str]] = set()
        self._rows: dict[Key, Values | None] = {}

    def copy(self) -> Ledger:
        """Return an independent copy."""
        other = Ledger()
        other.rules = self.rules
        other._of_row = {key: list(deltas) for key, deltas in self._of_row.items()}
        other._known = set(self._known)
        other._rows = dict(self._rows)
        return other

    def take(self, deltas: Iterable[Delta]) -> list[Delta]:
        """Record acknowledged deltas; return those that are not repeats."""
        new = []
        for each in deltas:
            identity = (each["clientId"], int(each["hlc"]), each["deltaId"])
            if identity not in self._known:
                self._known.add(identity)
                self._of_row.setdefault(key_of(each), []).append(each)
                self._rows.pop(key_of(each), None)
                new.append(each)
        return new

    @property
    def keys(self) -> set[Key]:
        """Every row that was ever written."""
        return set(self._of_row)

    def row(self, key: Key) -> Values | None:
        """A row's current state."""
        if key not in self._rows:
            self._rows[key] = merge(self._of_row.get(key, ()))
        return self._rows[key]

    def visible(self, claims: Mapping[str, Any]) -> dict[Key, Values]:
        """The rows that a client with these claims must have."""
        found = {}
        for key in self._of_row:
            row = self.row(key)
            if row is not None and shows(self.rules, key[0], row, claims):
                found[key] = row
        return found
