"""R7: visibility by bucket keys equals the evaluation of the rules, for any rules, rows and claims."""

from hypothesis import given
from hypothesis import strategies as st

from lakesync.model.types import ColumnValue
from lakesync.rules.keys import BucketIndex
from lakesync.rules.model import matches
from lakesync.testing import strategies

rows = st.dictionaries(st.sampled_from(["x", "y", "z"]), strategies.filter_values, max_size=3)


@given(
    strategies.rules(),
    st.lists(st.tuples(st.sampled_from(["t", "u"]), rows), min_size=1, max_size=4),
    strategies.claims,
    st.sampled_from([0, 1, 1000]),
)
def test_r7_bucket_keys_agree_with_direct_evaluation_of_the_rules(rules, given_rows, claims, max_computed_keys):
    index = BucketIndex(rules, max_computed_keys)
    keys = [
        index.row_keys(table, {column: ColumnValue.of(column, value).value for column, value in row.items()})
        for table, row in given_rows
    ]
    in_use = frozenset().union(*keys)
    seen = index.client_keys(claims, lambda prefix: [key for key in in_use if key.startswith(prefix)])
    for (table, row), row_keys in zip(given_rows, keys, strict=True):
        assert bool(row_keys & seen) == matches(rules, table, row, claims)
    assert all(key == "*" or key.startswith("[") for key in in_use | seen)
    assert (
        index.client_keys(index.claims_read(claims), lambda prefix: [k for k in in_use if k.startswith(prefix)]) == seen
    )
