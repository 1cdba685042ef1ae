"""Histories of random deltas, and the expected state tables."""

from datetime import date, timedelta

import msgspec

from lakesync.model.delta import delta_id
from lakesync.model.merge import RowState
from lakesync.model.schema import parse_schema
from lakesync.model.types import ColumnValue, RowDelta
from tests.lake_support import arrivals, states
from tests.spelling import spelled

FIRST = date(2013, 1, 1)
DAYS = [FIRST + timedelta(days=number) for number in range(3)]
TYPES = {"title": "string", "size": "number", "done": "boolean", "extra": "json"}


def schema(types=TYPES, table="t"):
    return parse_schema({"table": table, "columns": [{"name": name, "type": kind} for name, kind in types.items()]})


def delta(op, row, hlc, client="a", table="t", **values):
    columns = tuple(ColumnValue.of(name, value) for name, value in values.items())
    identity = delta_id(client_id=client, hlc=hlc, table=table, row_id=row, columns=columns)
    return RowDelta(op, table, row, client, columns, hlc, identity)


def random_history(rng, gateway, days=DAYS, pushes_a_day=6):
    """`(arrival, deltas)` over several days: few rows, few clients, stamps in another order than the arrivals."""
    pushes = []
    for day in days:
        for arrival in arrivals(day, pushes_a_day, start=rng.randint(0, 80_000)):
            deltas = [
                delta(
                    rng.choices(["INSERT", "UPDATE", "DELETE"], [3, 6, 1])[0],
                    f"{gateway}-{rng.randint(1, 12)}",
                    rng.randint(1, 60),
                    rng.choice("abc"),
                    **{
                        name: rng.choice(["x", 'q"\\\n', 1.5, True, None, {"k": [1]}])
                        for name in rng.sample(list(TYPES), rng.randint(1, 3))
                    },
                )
                for _ in range(5)
            ]
            pushes.append(
                (arrival, [msgspec.structs.replace(one, columns=()) if one.op == "DELETE" else one for one in deltas])
            )
    return pushes


def merged(pushes, gateway):
    """The Python merge, encoded; a row without stored values equals a row that was never written."""
    rows = {}
    for _, deltas in pushes:
        for one in deltas:
            rows.setdefault((gateway, one.row_id), RowState()).merge(one)
    return {key: spelled(state) for key, state in rows.items()}


def lake(spark, names, table="t"):
    return {key: spelled(state) for key, state in states(spark.table(names.state(table))).items()}


def content(spark, names):
    rows = spark.table(names.state("t")).toArrow().to_pylist()
    return sorted(str(sorted((name, str(value)) for name, value in row.items())) for row in rows)
