import msgspec
import pytest

from lakesync.model.errors import ValidationError
from lakesync.rules.model import MAX_INEQUALITY_FILTERS, all_rows_rules, matches, parse_rules, user_scoped


def with_filters(*filters):
    bucket = {
        "name": "mine",
        "tables": [],
        "filters": [dict(zip(("column", "op", "value"), f, strict=True)) for f in filters],
    }
    return {"version": 1, "buckets": [{"name": "other", "tables": [], "filters": []}, bucket]}


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        (with_filters(("a", "eq", "x"), ("b", "like", "x")), r"buckets\[1\] 'mine': filters\[1\] on 'b': op 'like'"),
        (with_filters(("a", "eq", 5)), r"buckets\[1\] 'mine': filters\[0\] on 'a': value 5"),
        (with_filters(("a b", "eq", "x")), r"filters\[0\]: column 'a b'"),
        (with_filters(("a", "eq", "jwt:")), "names no claim"),
        (with_filters(*[("a", "gt", "jwt:n")] * (MAX_INEQUALITY_FILTERS + 1)), "split the bucket"),
        ({"version": True, "buckets": []}, "True"),
        ({"version": 1, "buckets": [7]}, r"buckets\[0\]"),
        ({"version": 1, "buckets": [{"name": "x" * 65, "tables": [], "filters": []}]}, "65"),
        ({"version": 1, "buckets": [{"name": "a", "tables": ["b c"], "filters": []}]}, r"'a': tables\[0\] 'b c'"),
        ({"version": 1, "buckets": [{"name": "a", "tables": [], "filters": [None]}]}, r"'a': filters\[0\]"),
    ],
)
def test_invalid_rules_are_reported_with_their_position(rules, message):
    with pytest.raises(ValidationError, match=message):
        parse_rules(rules)


def test_rules_read_back_from_their_json():
    rules = parse_rules(with_filters(("a", "eq", "jwt:sub"), ("b", "gte", "3")))
    assert parse_rules(msgspec.json.decode(msgspec.json.encode(rules))) == rules


def test_presets_show_all_rows_or_those_of_the_user():
    assert matches(all_rows_rules(), "t", {}, {})
    rules = user_scoped("owner", ("notes",))
    assert matches(rules, "notes", {"owner": "me"}, {"sub": "me"})
    assert not matches(rules, "notes", {"owner": "you"}, {"sub": "me"})
    assert not matches(rules, "other", {"owner": "me"}, {"sub": "me"})
    assert (
        parse_rules(msgspec.to_builtins(rules) | {"buckets": msgspec.json.decode(msgspec.json.encode(rules.buckets))})
        == rules
    )


def test_version_1_0_is_the_integer_1():
    assert type(parse_rules({"version": 1.0, "buckets": []}).version) is int
    with pytest.raises(ValidationError, match=r"version 1\.5"):
        parse_rules({"version": 1.5, "buckets": []})
