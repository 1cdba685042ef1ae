"""Typed columns: the lake's projection over Arrow, that of `lakesync query` in SQL, and that of destinations agree."""

import math

import duckdb
import msgspec
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from lakehouse.tables.typed_columns import typed_values
from lakesync.adapters.deltas import RowContent, StoredDelta, contents_of
from lakesync.adapters.sql.row_values import row_values
from lakesync.analysis.merge_sql import typed_value
from lakesync.model.delta import delta_id, jcs_raw
from lakesync.model.merge import RowState
from lakesync.model.schema import parse_schema
from lakesync.model.types import ColumnValue, RowDelta

KINDS = ("string", "number", "boolean", "json", "null")
"""Schema types; `null` has no value in a destination, and is always null in the lake."""

SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**53), 2**53),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=12),
    st.sampled_from(["", "null", "true", "1", "-", "\\", '"', "\n", "é", "\0", "1e400"]),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)


def in_the_lake(texts, kind):
    return typed_values(pa.array(texts, pa.string()), kind).to_pylist()


@pytest.fixture(scope="module")
def database():
    """A database in memory. Opening one takes longer than all queries of an example."""
    with duckdb.connect() as opened:
        yield opened


def in_duckdb(database, texts, kind):
    database.register("cells", pa.table({"number": range(len(texts)), "text": pa.array(texts, pa.string())}))
    sql = f"SELECT {typed_value(kind, 'text')} FROM cells ORDER BY number"
    return [value for (value,) in database.execute(sql).fetchall()]


def at_a_destination(values, kind):
    """A column's values in destination rows, and the values that do not fit it, by row number."""
    schema = parse_schema({"table": "t", "columns": [{"name": "c", "type": kind}]})
    deltas = []
    for number, value in enumerate(values):
        columns = (ColumnValue.of("c", value),)
        identity = delta_id(client_id="ann", hlc=1, table="t", row_id=str(number), columns=columns)
        delta = RowDelta("INSERT", "t", str(number), "ann", columns, 1, identity)
        deltas.append(StoredDelta("g", 1, delta))
    found = row_values(schema, contents_of(deltas), now_ms=0)
    shown = dict(zip(found.rows["row_id"].to_pylist(), found.rows["c"].to_pylist(), strict=True))
    unfit = {int(letter.row_id) for letter in found.letters}
    return [shown[str(number)] for number in range(len(values))], unfit


def same(first, second):
    if isinstance(first, float) and isinstance(second, float):
        return first == second and math.copysign(1, first) == math.copysign(1, second)
    return type(first) is type(second) and first == second


@settings(deadline=None, max_examples=150)
@given(values=st.lists(VALUES, min_size=1, max_size=12))
@example(values=["a", 'q"\n\\', "é😀", "\0", None, True, 0, -1.5e300, 5e-324, {"k": [1]}, [], "\\u0000"])
def test_the_lake_and_queries_type_values_alike(database, values):
    texts = [*map(jcs_raw, map(msgspec.json.encode, values)), None]
    for kind in KINDS:
        for text, lake, query in zip(texts, in_the_lake(texts, kind), in_duckdb(database, texts, kind), strict=True):
            assert same(lake, query), (kind, text, lake, query)


def test_a_number_beyond_a_double_is_null(database):
    texts = ["1e400", "-1e400", "1e308"]
    assert in_the_lake(texts, "number") == in_duckdb(database, texts, "number") == [None, None, 1e308]


@settings(deadline=None, max_examples=150)
@given(values=st.lists(VALUES, min_size=1, max_size=12))
@example(values=["a", 'q"\n\\', "é😀", "\0", None, True, 0, -1.5e300, 5e-324, {"k": [1]}, [], "\\u0000"])
def test_destinations_type_values_like_the_lake_except_text_and_unsupported_values(values):
    texts = [*map(jcs_raw, map(msgspec.json.encode, values))]
    for kind in KINDS:
        shown, unfit = at_a_destination(values, kind)
        for number, (text, lake) in enumerate(zip(texts, in_the_lake(texts, kind), strict=True)):
            there = shown[number]
            if number in unfit:
                has_nul = "\\u0000" in text.replace("\\\\", "")  # an escaped backslash may precede `u0000`
                is_unstorable = kind in ("string", "json") and has_nul
                assert there is None, (kind, text)
                assert is_unstorable or (lake is None and text != "null"), (kind, text, lake)
            elif kind == "number" and there is not None:
                assert float(there) == lake, (kind, text)
            elif kind == "string" and lake is None and text != "null":
                assert jcs_raw(there.encode()) == text, "a text column accepts any value"
            elif kind == "json" and there is not None:
                assert jcs_raw(there.encode()) == lake == text
            else:
                assert there == lake, (kind, text, there, lake)


@pytest.mark.parametrize(
    ("text", "is_storable"),
    [
        (r'"C:\\u0000x"', True),
        (r'{"\\ud800":1}', True),
        (r'"\ud83d\ude00"', True),
        (r'"\uD83D\uDE00\\"', True),
        (r'"\u0001"', True),
        (r'"a\u0000b"', False),
        (r'"\\\u0000"', False),
        (r'["\ud83d"]', False),
        (r'"\ud83d\u0041"', False),
        (r'"\ud83d\ud83d\ude00"', False),
        (r'"\ude00\ud83d"', False),
    ],
)
def test_json_columns_of_destinations_reject_only_nul_and_lone_surrogates(text, is_storable):
    schema = parse_schema({"table": "t", "columns": [{"name": "c", "type": "json"}]})
    state = RowState()
    state.merge(RowDelta("INSERT", "t", "r", "ann", (ColumnValue("c", msgspec.Raw(text.encode())),), 1, "id"))
    found = row_values(schema, {("g", "r"): RowContent(state, 1)}, now_ms=0)
    assert found.rows["c"].to_pylist() == [text if is_storable else None]
    assert [letter.value for letter in found.letters] == [text] * (not is_storable)
