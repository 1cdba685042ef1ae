"""SQL conditions for values that the gateway would reject.

Triggers use them to reject such values when the app writes them; `table_validation` uses them for existing rows. `{0}`
stands for the value, as `NEW."title"` or `t."title"`: never a bare name, which could be a column of `json_tree`.
"""

from __future__ import annotations

from lakesync.model.delta import MAX_DEPTH
from lakesync.model.schema import ColumnType
from lakesync.model.validation import MAX_ID_CHARS

INVALID_ID = f"(typeof({{0}}) <> 'text' OR length({{0}}) NOT BETWEEN 1 AND {MAX_ID_CHARS} OR instr({{0}}, char(0)))"
"""True for a row id that the gateway rejects."""
VALID_ID = f"text of 1 to {MAX_ID_CHARS} characters"
"""What a row id must be, for messages."""

_MAX_DOUBLE = "1.7976931348623157e308"
_NODES = "EXISTS (SELECT 1 FROM json_tree({0}) node"

_BEYOND_DOUBLES = (
    f"(({{0}} GLOB '*[0-9][eE]*' OR {{0}} GLOB '*{'[0-9]' * 20}*') AND "  # cheap: no other number can be that large
    f"{_NODES} WHERE node.type IN ('integer', 'real') AND abs(node.value) > {_MAX_DOUBLE}))"
)
_SURROGATE_PREFIXES = ", ".join(f"(x'ED{second:02X}')" for second in range(0xA0, 0xC0))
"""The first two bytes of the invalid UTF-8 that SQLite makes of half a surrogate pair."""
_HALF_SURROGATE_PAIR = (
    "({0} GLOB '*\\u[dD][89a-fA-F]*' AND "
    f"{_NODES}, (VALUES {_SURROGATE_PREFIXES}) half "
    "WHERE instr(CAST(node.atom AS BLOB), half.column1) OR instr(CAST(node.key AS BLOB), half.column1)))"
)
_TOO_DEEP = (
    # cheap: enough brackets, then a long enough path; only then the exact depth
    f"(length({{0}}) - length(replace(replace({{0}}, '[', ''), char(123), '')) > {MAX_DEPTH} AND "
    f"{_NODES} WHERE node.type IN ('array', 'object') AND length(node.fullkey) > {2 * MAX_DEPTH} AND "
    f"length(node.fullkey) - length(replace(replace(node.fullkey, '[', ''), '.', '')) >= {MAX_DEPTH}) AND "
    "(WITH RECURSIVE deep (id, depth) AS (SELECT id, 1 FROM json_tree({0}) WHERE parent IS NULL UNION ALL "
    "SELECT node.id, depth + 1 FROM deep JOIN json_tree({0}) node ON node.parent = deep.id "
    f"WHERE node.type IN ('array', 'object')) SELECT max(depth) FROM deep) > {MAX_DEPTH})"
)
_NOT_CANONICAL = f"instr({{0}}, char(0)) OR {_BEYOND_DOUBLES} OR {_HALF_SURROGATE_PAIR} OR {_TOO_DEEP}"
"""True for JSON without a canonical form, which other clients would read differently; `jcs_raw` rejects it too.

Each part parses the JSON only if a cheap look at the text does not rule the problem out.
"""

INVALID_VALUES: dict[ColumnType, tuple[str, str]] = {
    "string": ("typeof({0}) = 'blob'", "text"),
    "number": (
        f"typeof({{0}}) IN ('text', 'blob') OR {{0}} NOT BETWEEN -{_MAX_DOUBLE} AND {_MAX_DOUBLE}",
        "a finite number",
    ),
    "boolean": ("{0} NOT IN (0, 1)", "0 or 1"),
    "json": (
        f"typeof({{0}}) = 'blob' OR CASE WHEN json_valid({{0}}) THEN {_NOT_CANONICAL} ELSE {{0}} IS NOT NULL END",
        f"JSON text of finite numbers and whole characters, at most {MAX_DEPTH} deep",
    ),
    "null": ("{0} IS NOT NULL", "NULL"),
}
"""By column type: the condition for an invalid value, and what a value must be, for messages."""
