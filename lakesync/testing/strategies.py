"""Hypothesis strategies for what clients and gateways exchange: values, deltas, claims and sync rules.

A client pushes deltas (changes of rows) to a gateway, which sends them to other clients. A delta's timestamp is its
*hlc*, by the client's clock. Claims are the fields of a client's token; sync rules decide by them which rows the client
sees. Tests of this project and of apps import the strategies. A strategy generates random examples for property tests.
Only this module needs the package Hypothesis.
"""

from __future__ import annotations

from typing import Any, get_args

from hypothesis import strategies as st

from lakesync.model.delta import delta_id, jcs
from lakesync.model.types import Claims, ColumnValue, Op, Operator, RowDelta
from lakesync.rules.model import MAX_INEQUALITY_FILTERS, Bucket, Filter, SyncRules

OPS: tuple[Op, ...] = get_args(Op)
"""The operations of deltas."""
OPERATORS: tuple[Operator, ...] = get_args(Operator)
"""The operators of filters in sync rules."""

texts: st.SearchStrategy[str] = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
"""Any Unicode text that JSON can carry: no surrogates (category Cs), but control characters and all planes."""

ids: st.SearchStrategy[str] = st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=12
)
"""Row, client and delta ids."""

identifiers: st.SearchStrategy[str] = st.from_regex(r"[a-zA-Z_][a-zA-Z0-9_]{0,10}", fullmatch=True)
"""Names of tables and columns."""

scalars: st.SearchStrategy[Any] = (
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False, allow_infinity=False) | texts
)
"""JSON values without lists and objects."""

values: st.SearchStrategy[Any] = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3), max_leaves=6
)
"""JSON values as Python reads them."""

hlcs: st.SearchStrategy[int] = st.integers(0, 2**63 - 1)
"""Hybrid logical clocks: the timestamps of deltas."""


@st.composite
def column_values(
    draw: st.DrawFn,
    columns: st.SearchStrategy[str] = identifiers,
    cells: st.SearchStrategy[Any] = values,
    max_size: int = 4,
) -> tuple[ColumnValue, ...]:
    """Columns of a delta, each once.

    Args:
        draw: given by Hypothesis.
        columns: their names.
        cells: their values, as JSON.
        max_size: number of columns, at most.
    """
    by_column = draw(st.dictionaries(columns, cells, max_size=max_size))
    return tuple(ColumnValue.of(column, value) for column, value in by_column.items())


@st.composite
def deltas(
    draw: st.DrawFn,
    *,
    tables: st.SearchStrategy[str] = identifiers,
    rows: st.SearchStrategy[str] = ids,
    clients: st.SearchStrategy[str] = ids,
    stamps: st.SearchStrategy[int] = hlcs,
    columns: st.SearchStrategy[tuple[ColumnValue, ...]] | None = None,
) -> RowDelta:
    """A well-formed delta with its true id. `stamps` are its hlcs."""
    op = draw(st.sampled_from(OPS))
    cells = () if op == "DELETE" else draw(columns if columns is not None else column_values())
    table, row, client, hlc = draw(tables), draw(rows), draw(clients), draw(stamps)
    identity = delta_id(client_id=client, hlc=hlc, table=table, row_id=row, columns=cells)
    return RowDelta(op, table, row, client, cells, hlc, identity)


def conflicting_deltas() -> st.SearchStrategy[RowDelta]:
    """Deltas of one row by few clients at few times, so that many stamps `(hlc, client)` cross or are equal."""
    return deltas(
        tables=st.just("t"),
        rows=st.just("r"),
        clients=st.sampled_from(["a", "b", "\uffff", "\U00010000"]),  # the last two sort otherwise in UTF-16
        stamps=st.integers(1, 5),
        columns=column_values(st.sampled_from(["x", "y", "z"]), st.sampled_from([None, 1, 2, "1", True]), 3),
    )


def histories(*, max_size: int = 6) -> st.SearchStrategy[list[RowDelta]]:
    """Lists of `conflicting_deltas`."""
    return st.lists(conflicting_deltas(), max_size=max_size)


filter_values: st.SearchStrategy[Any] = (
    st.sampled_from(["a", "b", "3", "10", "-1", "2.5", "", "true", "null", 3, 10, -1, 2.5, True, None, ["a"], {"k": 1}])
    | st.sampled_from(["é" * 70, "é" * 70 + "x", "9" * 80, "a" * 63, "a" * 64, "a" * 65, "a" * 300])
    | texts
)
"""Column values near the constants of filters, and near the 64 characters that filters compare."""

_constants = st.sampled_from(["a", "b", "3", "10", "2.5", "", "true", "a" * 65]) | texts.filter(
    lambda text: not text.startswith("jwt:")
)
"""The constants that filters compare with."""
_claim_names = st.sampled_from(["sub", "team", "level"])


@st.composite
def rules(draw: st.DrawFn, columns: tuple[str, ...] = ("x", "y")) -> SyncRules:
    """Sync rules over the tables `t` and `u`.

    They consist of buckets: tables, with filters on a row's columns that must all hold. The operand `jwt:NAME` of a
    filter is the claim NAME of the client's token.

    Args:
        draw: given by Hypothesis.
        columns: names of the columns that filters compare.
    """
    names = draw(st.lists(texts.filter(bool), max_size=3, unique=True))
    return SyncRules(draw(st.integers(1, 9)), tuple(_bucket(draw, name, columns) for name in names))


def _bucket(draw: st.DrawFn, name: str, columns: tuple[str, ...]) -> Bucket:
    """Return a random bucket with this name, whose filters are on these columns."""
    operands = _constants | _claim_names.map(lambda claim: f"jwt:{claim}")
    filters = [
        Filter(draw(st.sampled_from(columns)), draw(st.sampled_from(OPERATORS)), draw(operands))
        for _ in range(draw(st.integers(0, MAX_INEQUALITY_FILTERS)))  # all of them may be inequalities
    ]
    tables = draw(st.lists(st.sampled_from(["t", "u"]), max_size=2, unique=True))
    return Bucket(name, tuple(tables), tuple(filters))


claims: st.SearchStrategy[Claims] = st.dictionaries(
    _claim_names,
    st.one_of(
        filter_values.map(lambda value: value if isinstance(value, str) else jcs(value)),
        st.lists(st.sampled_from(["a", "b", "3", "10", "a" * 65, "é" * 70]), max_size=3),
    ),
    max_size=3,
)
"""The claims of a client's token that rules read."""
