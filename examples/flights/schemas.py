"""The tables and sync rules of the demo, as an application would register them.

By the rules a carrier sees its own flights, and every client the airlines, airports and planes.
"""

from __future__ import annotations

from typing import Any

GATEWAY = "flights"
"""The gateway id."""


def _table(name: str, /, **columns: str) -> dict[str, Any]:
    """Return the schema of a table, given the type of each column."""
    return {"table": name, "columns": [{"name": column, "type": kind} for column, kind in columns.items()]}


SCHEMAS = (
    _table("airlines", carrier="string", name="string"),
    _table(
        "airports",
        faa="string",
        name="string",
        position="json",
        alt="number",
        tz="number",
        dst="string",
        tzone="string",
    ),
    _table(
        "planes",
        tailnum="string",
        year="number",
        type="string",
        manufacturer="string",
        model="string",
        engines="number",
        seats="number",
        speed="number",
        engine="string",
    ),
    _table(
        "flights",
        carrier="string",
        flight="number",
        origin="string",
        dest="string",
        day="string",
        distance="number",
        sched_dep_time="number",
        sched_arr_time="number",
        tailnum="string",
        status="string",
        estimated="boolean",
        dep_time="number",
        dep_delay="number",
        arr_time="number",
        arr_delay="number",
    ),
)

COLUMNS: dict[str, dict[str, str]] = {
    schema["table"]: {column["name"]: column["type"] for column in schema["columns"]} for schema in SCHEMAS
}
"""Table → column → type."""

RULES: dict[str, Any] = {
    "version": 1,
    "buckets": [
        {
            "name": "own_flights",
            "tables": ["flights"],
            "filters": [{"column": "carrier", "op": "eq", "value": "jwt:carrier"}],
        },
        {"name": "reference", "tables": ["airlines", "airports", "planes"], "filters": []},
    ],
}
