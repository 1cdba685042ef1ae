"""The prefixes of new bucket keys, for subscribers that wait for one."""

from __future__ import annotations

import msgspec
import pytest

from lakesync.rules.keys import EVERYTHING, BucketIndex, prefixes_of
from lakesync.rules.model import parse_rules


def index(*filters):
    buckets = [
        {"name": f"bucket {each}", "tables": [], "filters": [dict(zip(("column", "op", "value"), each, strict=True))]}
        for each in filters
    ]
    return BucketIndex(parse_rules({"version": 1, "buckets": buckets}))


def row(**values):
    return {column: msgspec.Raw(msgspec.json.encode(value)) for column, value in values.items()}


@pytest.mark.parametrize("group", ["x", "ż", "y" * 300])
def test_a_new_key_is_recognised_by_its_prefix(group):
    rules = parse_rules(
        {
            "version": 1,
            "buckets": [
                {
                    "name": 'a "b"',
                    "tables": [],
                    "filters": [
                        {"column": "group", "op": "eq", "value": "jwt:group"},
                        {"column": "level", "op": "lte", "value": "jwt:level"},
                        {"column": "state", "op": "neq", "value": "jwt:state"},
                    ],
                }
            ],
        }
    )
    known = BucketIndex(rules)
    claims = {"group": group, "level": "5", "state": "closed"}
    (key,) = known.row_keys("t", row(group=group, level=3, state="o" * 100))
    assert known.client_prefixes(claims) == {prefixes_of(key)[-1]}
    assert known.client_prefixes({**claims, "group": "other"}) != {prefixes_of(key)[-1]}


def test_keys_of_equality_have_no_prefix():
    known = index(("group", "eq", "jwt:group"), ("kind", "eq", "note"))
    claims = {"group": "x"}
    assert known.client_prefixes(claims) == frozenset()
    keys = known.client_keys(claims, lambda _: [])
    assert len(keys) == 2
    assert {prefixes_of(key) for key in (EVERYTHING, "@client [1,2,3]")} == {()}


@pytest.mark.parametrize("other", ["in", "lte"])
@pytest.mark.parametrize("width", [1, 300])
def test_combinations_of_long_lists_are_looked_up_among_the_keys_in_use(width, other):
    teams = [f"t{n:03}".ljust(width, "x") for n in range(300)]
    filters = [{"column": column, "op": "in", "value": f"jwt:{column}"} for column in ("team", "owner")]
    filters.append({"column": "level", "op": other, "value": "jwt:level"})
    known = BucketIndex(parse_rules({"version": 1, "buckets": [{"name": "both", "tables": [], "filters": filters}]}))
    claims = {"team": teams, "owner": teams, "level": "3"}
    seen, unseen = [
        known.row_keys("t", row(team=teams[7], owner=owner, level="3"))
        for owner in (teams[299], "other".ljust(width, "x"))
    ]
    in_use = seen | unseen
    asked = []

    def existing(prefix):
        asked.append(prefix)
        return [key for key in in_use if key.startswith(prefix)]

    assert known.client_keys(claims, existing) == seen
    assert len(asked) == 1
    (prefix,) = known.client_prefixes(claims)
    assert all(prefix in prefixes_of(key) for key in seen)
