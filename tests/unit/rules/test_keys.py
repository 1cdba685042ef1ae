import re

import pytest

from lakesync.model.types import ColumnValue
from lakesync.rules.keys import EVERYTHING, BucketIndex
from lakesync.rules.model import Bucket, Filter, SyncRules, matches


def index(*filters, name="b"):
    return BucketIndex(SyncRules(1, (Bucket(name, (), tuple(Filter(*parts) for parts in filters)),)))


def row(**values):
    return {column: ColumnValue.of(column, value).value for column, value in values.items()}


def plain(*keys):
    """The keys without the digest of their bucket's content."""
    return {re.sub(r'#[0-9a-f]{12}"', '"', key, count=1) for key in keys}


def unasked(prefix):
    raise AssertionError(f"keys were enumerated for {prefix}")


def test_without_buckets_rows_and_clients_have_one_key():
    found = BucketIndex(SyncRules(1, ()))
    assert found.row_keys("t", {}) == found.client_keys({}, unasked) == {EVERYTHING}


def test_row_and_client_keys_of_an_equality_filter_are_equal():
    found = index(("o", "eq", "jwt:sub"), ("p", "eq", "x"))
    assert plain(*found.row_keys("t", row(o="u1", p="x"))) == {'["b",["u1"]]'}
    assert found.row_keys("t", row(o="u1", p="y")) == set()
    assert found.row_keys("t", row(p="x")) == set()
    assert found.client_keys({"sub": "u1"}, unasked) == found.row_keys("t", row(o="u1", p="x"))
    assert found.client_keys({}, unasked) == set()


def test_buckets_with_different_definitions_have_different_keys():
    filters = [
        [Filter("o", "eq", "jwt:sub")],
        [Filter("p", "eq", "jwt:sub")],
        [Filter("o", "eq", "u1")],
        [Filter("o", "gte", "u1")],
        [Filter("o", "gte", "u0")],
        [Filter("p", "gte", "u0")],
        [Filter("o", "gte", "jwt:sub")],
        [Filter("o", "lte", "jwt:sub")],
        [Filter("o", "eq", "jwt:sub"), Filter("p", "neq", "z")],
    ]
    buckets = [Bucket("b", tables, tuple(each)) for each in filters for tables in ((), ("t",), ("t", "u"))]
    keys = [BucketIndex(SyncRules(1, (bucket,))).row_keys("t", row(o="u1", p="u1")) for bucket in buckets]
    assert len(frozenset().union(*keys)) == len(buckets)
    assert keys[0] == BucketIndex(SyncRules(2, (buckets[0],))).row_keys("t", row(o="u1"))


def test_list_claims_give_a_key_for_every_combination():
    found = index(("o", "in", "jwt:team"), ("p", "eq", "jwt:level"))
    keys = found.client_keys({"team": ["a", "b", "a"], "level": ["1", "2"]}, unasked)
    assert plain(*keys) == {'["b",["a","1"]]', '["b",["a","2"]]', '["b",["b","1"]]', '["b",["b","2"]]'}
    assert found.client_keys({"team": [], "level": "1"}, unasked) == set()


def test_keys_to_scan_follow_a_prefix_of_the_known_keys():
    found = index(("p", "gte", "jwt:level"), ("o", "eq", "jwt:sub"), ("q", "neq", "jwt:sub"))
    (key,) = found.row_keys("t", row(o="u1", p=3, q="z"))
    assert plain(key) == {'["b",["u1"],["3","z"]]'}
    asked = []

    def existing(prefix):
        asked.append(prefix)
        return [key, key.replace('"3","z"', '"1","z"'), key.replace('"3","z"', '"9","u1"')]

    assert found.client_keys({"sub": "u1", "level": "2"}, existing) == {key}
    assert plain(*asked) == {'["b",["u1"],['}
    assert found.client_keys({"sub": "u1"}, unasked) == set()


def test_a_bucket_name_that_looks_like_a_key_causes_no_collision():
    odd = index(("o", "eq", "jwt:sub"), name='b",["u1"]]')
    usual = index(("o", "eq", "jwt:sub"))
    assert odd.row_keys("t", row(o="u1")).isdisjoint(usual.row_keys("t", row(o="u1")))
    hashed = usual.row_keys("t", row(o="x" * 1000))
    (text,) = hashed
    assert usual.row_keys("t", row(o=text.split('"')[3])).isdisjoint(hashed)


@pytest.mark.parametrize("char", ["a", "é", "\U0001f600", "\0", '"'])
def test_the_length_of_a_key_is_bounded(char):
    long = char * 100_000
    found = index(
        ("o", "eq", "jwt:sub"), ("p", "gt", "jwt:a"), ("p", "lt", "jwt:a"), ("p", "neq", "jwt:a"), name=char * 64
    )
    (key,) = found.row_keys("t", row(o=long, p=long))
    assert len(key.encode()) <= 2000
    assert "\0" not in key


def test_only_claims_that_the_rules_read_are_kept():
    found = index(("o", "eq", "jwt:sub"), ("p", "gt", "jwt:level"))
    assert found.claims_read({"sub": "u", "level": "1", "gw": "g", "team": ["a"]}) == {"sub": "u", "level": "1"}
    assert BucketIndex(SyncRules(1, ())).claims_read({"sub": "u"}) == {}


TEXTS = ["", "a", "3", "10", "-1", "1e1", "0x1", " 3", "a" * 63, "a" * 64, "a" * 65, "a" * 64 + "b", "é" * 70, "9" * 80]


@pytest.mark.parametrize("op", ["eq", "neq", "in", "gt", "lt", "gte", "lte"])
def test_keys_agree_with_direct_evaluation_on_long_and_odd_texts(op):
    rules = SyncRules(1, (Bucket("b", (), (Filter("x", op, "jwt:c"),)),))
    found = BucketIndex(rules)
    for text in [*TEXTS, 3, 10.0, -1, True, None, ["a"], {"a": 1}]:
        keys = found.row_keys("t", row(x=text))
        for claim in [*TEXTS, "true", "null", '["a"]', '{"a":1}', *([one, "a" * 65] for one in TEXTS)]:
            seen = found.client_keys({"c": claim}, lambda prefix, keys=keys: [k for k in keys if k.startswith(prefix)])
            assert bool(keys & seen) == matches(rules, "t", {"x": text}, {"c": claim}), (text, claim)


def test_long_texts_are_found_without_combining_all_lists():
    """For a row with long texts, a pull compares digests; three lists of 500 have 125 million combinations."""
    rules = SyncRules(1, (Bucket("b", (), tuple(Filter(column, "in", f"jwt:{column}") for column in "xyz")),))
    found = BucketIndex(rules)
    many = [f"t{number}" for number in range(500)]
    long = ["é" * 127, "a" * 300]
    values = {"x": long[1], "y": "t7", "z": "t499"}
    keys = found.row_keys("t", row(**values)) | found.row_keys("t", row(x="t1", y="t2", z="t3"))
    claims = [
        ({"x": many, "y": many, "z": many}, 1),
        ({"x": [*many, *long], "y": many[:9], "z": many}, 2),
        ({"x": [*many, *long], "y": many, "z": many}, 1),  # 500,000 digests: the row with long texts is not shown
        ({"x": long[1:], "y": many, "z": many[-200:]}, 1),  # 100,000 digests: it is
        ({"x": long[1:], "y": many, "z": many[-201:]}, 0),
    ]
    for given, expected in claims:
        assert len(found.client_keys(given, lambda prefix: [key for key in keys if key.startswith(prefix)])) == expected


@pytest.mark.parametrize("extra", [-1, 0, 1])
def test_texts_as_long_as_the_limit_are_found(extra):
    rules = SyncRules(1, (Bucket("b", (), (Filter("x", "in", "jwt:x"), Filter("y", "in", "jwt:y"))),))
    found = BucketIndex(rules, max_computed_keys=1)
    length = (256 - len('["",""]') + extra) // 2
    values = {"x": "a" * length, "y": "b" * (256 - len('["",""]') + extra - length)}
    keys = found.row_keys("t", row(**values))
    claims = {column: ["c", text, "d" * 5] for column, text in values.items()}
    assert found.client_keys(claims, lambda prefix: [key for key in keys if key.startswith(prefix)]) == keys


def test_ordering_filters_compare_the_first_64_characters():
    def ordered(op, text, constant):
        return matches(SyncRules(1, (Bucket("b", (), (Filter("x", op, constant),)),)), "t", {"x": text}, {})

    assert ordered("gt", "a" * 63 + "b", "a" * 64)
    assert not ordered("gt", "a" * 64 + "b", "a" * 65)
    assert not ordered("gt", "a" * 65, "a" * 64)
    assert not ordered("lt", "a" * 64, "a" * 65)
    assert ordered("gte", "a" * 64, "a" * 65)
