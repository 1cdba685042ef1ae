"""Figures of a table on which any two readers must agree, as one SELECT.

Imports nothing, because both environments run it.
"""

from __future__ import annotations

MODULUS = 1_000_003


def figures(columns: dict[str, str], source: str, *, dialect: str) -> str:
    """Return the query for a table's plain columns, name → `text`, `number`, `whole` or `truth`.

    Args:
        columns: the columns to aggregate.
        source: for FROM.
        dialect: `duckdb` or `clickhouse`.
    """
    length = "strlen" if dialect == "duckdb" else "length"
    parts = ["count(*)"]
    for name, kind in columns.items():
        column = f'"{name}"'
        parts.append(f"count({column})")
        match kind:
            case "text":
                parts += [
                    f"count(DISTINCT {column})",
                    f"coalesce(sum({length}({column})), 0)",
                    f"min({column})",
                    f"max({column})",
                ]
            case "number":
                parts += [f"min({column})", f"max({column})"]
            case "whole":
                parts += [f"coalesce(sum({column} % {MODULUS}), 0)", f"min({column})", f"max({column})"]
            case "truth":
                parts.append(f"coalesce(sum(CASE WHEN {column} THEN 1 ELSE 0 END), 0)")
    return f"SELECT {', '.join(parts)} FROM {source}"
