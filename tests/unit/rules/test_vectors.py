import json
from pathlib import Path

import pytest

from lakesync.model.errors import ValidationError
from lakesync.model.types import ColumnValue
from lakesync.rules.keys import BucketIndex
from lakesync.rules.model import matches, parse_rules

VECTORS = json.loads((Path(__file__).parents[2] / "vectors/rules.json").read_text())


def visible_by_keys(rules, table, row, claims):
    index = BucketIndex(rules)
    keys = index.row_keys(table, {column: ColumnValue.of(column, value).value for column, value in row.items()})
    return bool(keys & index.client_keys(claims, lambda prefix: [key for key in keys if key.startswith(prefix)]))


@pytest.mark.parametrize("op", sorted({case["op"] for case in VECTORS["operators"]}))
def test_operators_agree_with_the_vectors(op):
    claims = VECTORS["claims"]
    for case in VECTORS["operators"]:
        if case["op"] == op:
            condition = {"column": "c", "op": op, "value": case["value"]}
            rules = parse_rules({"version": 1, "buckets": [{"name": "b", "tables": [], "filters": [condition]}]})
            row = {"c": case["column"]}
            assert matches(rules, "t", row, claims) == case["match"], case
            assert visible_by_keys(rules, "t", row, claims) == case["match"], case


@pytest.mark.parametrize("case", VECTORS["buckets"], ids=lambda case: case["label"])
def test_buckets_agree_with_the_vectors(case):
    rules = parse_rules(case["rules"])
    assert matches(rules, case["table"], case["row"], VECTORS["claims"]) == case["match"]
    assert visible_by_keys(rules, case["table"], case["row"], VECTORS["claims"]) == case["match"]


@pytest.mark.parametrize("case", VECTORS["validation"], ids=lambda case: json.dumps(case["rules"])[:60])
def test_validation_agrees_with_the_vectors(case):
    if case["valid"]:
        parse_rules(case["rules"])
    else:
        with pytest.raises(ValidationError):
            parse_rules(case["rules"])
