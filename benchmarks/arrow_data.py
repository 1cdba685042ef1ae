"""Generated deltas as Arrow tables, for the benchmarks of adapters and moves."""

from __future__ import annotations

import hashlib

import pyarrow as pa

from lakesync.adapters.arrow import arrow_schema


def deltas_between(first: int, last: int) -> pa.Table:
    """Return deltas of one gateway with the given numbers, in pushes of 100, three columns each."""
    numbers, count = range(first, last), last - first
    cells = [[("title", f'"item {n}"'), ("size", str(n % 1000)), ("tags", f'["a",{{"n":{n}}}]')] for n in numbers]
    columns = [
        ["g"] * count,
        [(1_700_000_000_000 + n // 100) << 16 for n in numbers],
        ["items"] * count,
        [f"row-{n % 50_000}" for n in numbers],
        ["UPDATE"] * count,
        [f"client-{n % 20}" for n in numbers],
        [(1_700_000_000_000 << 16) + n for n in numbers],
        [hashlib.sha256(str(n).encode()).hexdigest() for n in numbers],
        cells,
    ]
    schema = arrow_schema()
    return pa.Table.from_arrays(
        [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)], schema=schema
    )
