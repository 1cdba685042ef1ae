"""Trees of conditions."""

from pyiceberg.expressions import AlwaysFalse, AlwaysTrue
from pyiceberg.expressions.visitors import bind
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField

from lakesync.analysis.expression_trees import combine
from lakesync.analysis.scans import all_of, any_of, condition

SCHEMA = Schema(NestedField(1, "arrival", LongType()))


def test_parts_are_combined_in_their_order():
    for count in range(1, 20):
        assert combine(lambda first, second: f"{first}{second}", map(str, range(count))) == "".join(
            map(str, range(count))
        )


def test_conditions_of_many_gateways_can_be_evaluated():
    conditions = [condition("arrival", ">", number) for number in range(3000)]
    for joined in (any_of(conditions), all_of(*conditions)):
        bind(SCHEMA, joined, case_sensitive=True)
    assert (any_of([]), all_of()) == (AlwaysFalse(), AlwaysTrue())
