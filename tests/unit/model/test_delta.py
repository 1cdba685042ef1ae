import hashlib
import json
import struct
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakesync.model.delta import MAX_DEPTH, action_id, extract_delta, id_number, id_numbers, jcs, jcs_raw
from lakesync.model.errors import ValidationError
from lakesync.model.types import ColumnValue
from lakesync.testing import strategies

VECTORS = Path(__file__).parents[2] / "vectors"
DELTAS = json.loads((VECTORS / "delta.json").read_text())
ACTIONS = json.loads((VECTORS / "action_id.json").read_text())


@pytest.mark.parametrize("case", DELTAS["extract"], ids=lambda case: case["label"])
def test_extraction_agrees_with_the_vectors(case):
    expected = case["delta"]
    found = extract_delta(
        case["before"],
        case["after"],
        table=expected["table"],
        row_id=expected["rowId"],
        client_id=expected["clientId"],
        hlc=int(expected["hlc"]),
    )
    assert found.op == expected["op"]
    assert [(cell.column, cell.decoded()) for cell in found.columns] == [
        (cell["column"], cell["value"]) for cell in expected["columns"]
    ]
    assert found.delta_id == expected["deltaId"]


def extract(before, after):
    return extract_delta(before, after, table="t", row_id="r", client_id="c", hlc=1)


@pytest.mark.parametrize("case", DELTAS["no_change"], ids=str)
def test_equal_states_give_no_delta(case):
    assert extract(case["before"], case["after"]) is None


def columns(before, after):
    return [cell.column for cell in extract(before, after).columns]


def test_booleans_differ_from_numbers_and_1_equals_1_0():
    assert columns({"a": 1, "b": 1, "c": [0]}, {"a": True, "b": 1.0, "c": [False]}) == ["a", "c"]


def test_an_omitted_column_is_unchanged_and_a_new_null_is_a_change():
    assert columns({"a": 1, "b": 2}, {"c": None, "b": 3}) == ["c", "b"]
    assert extract({"a": 1}, {}) is None


def test_an_insert_without_columns_is_a_delta():
    assert extract(None, {}).op == "INSERT"


@pytest.mark.parametrize("case", ACTIONS, ids=lambda case: case["actionId"][:8])
def test_action_ids_agree_with_the_vectors(case):
    for params in (case["params"], msgspec.Raw(json.dumps(case["params"]).encode())):
        found = action_id(
            client_id=case["clientId"],
            hlc=int(case["hlc"]),
            connector=case["connector"],
            action_type=case["actionType"],
            params=params,
        )
        assert found == case["actionId"]


# RFC 8785, appendix B: bits of a double and its text.
NUMBERS = [
    ("0000000000000000", "0"),
    ("8000000000000000", "0"),
    ("0000000000000001", "5e-324"),
    ("8000000000000001", "-5e-324"),
    ("7fefffffffffffff", "1.7976931348623157e+308"),
    ("ffefffffffffffff", "-1.7976931348623157e+308"),
    ("4340000000000000", "9007199254740992"),
    ("c340000000000000", "-9007199254740992"),
    ("4430000000000000", "295147905179352830000"),
    ("44b52d02c7e14af5", "9.999999999999997e+22"),
    ("44b52d02c7e14af6", "1e+23"),
    ("44b52d02c7e14af7", "1.0000000000000001e+23"),
    ("444b1ae4d6e2ef4e", "999999999999999700000"),
    ("444b1ae4d6e2ef4f", "999999999999999900000"),
    ("444b1ae4d6e2ef50", "1e+21"),
    ("3eb0c6f7a0b5ed8c", "9.999999999999997e-7"),
    ("3eb0c6f7a0b5ed8d", "0.000001"),
    ("41b3de4355555553", "333333333.3333332"),
    ("41b3de4355555554", "333333333.33333325"),
    ("41b3de4355555555", "333333333.3333333"),
    ("41b3de4355555556", "333333333.3333334"),
    ("41b3de4355555557", "333333333.33333343"),
    ("becbf647612f3696", "-0.0000033333333333333333"),
    ("43143ff3c1cb0959", "1424953923781206.2"),
]


@pytest.mark.parametrize(("bits", "text"), NUMBERS, ids=[text for _, text in NUMBERS])
def test_numbers_are_encoded_as_rfc_8785_requires(bits, text):
    assert jcs(struct.unpack(">d", bytes.fromhex(bits))[0]) == text


def test_keys_are_sorted_in_utf_16_order():
    # RFC 8785, section 3.2.3
    keys = {"\u20ac": 1, "\r": 2, "\ufb33": 3, "1": 4, "\U0001f600": 5, "\x80": 6, "\xf6": 7}
    assert list(json.loads(jcs(keys)).values()) == [2, 4, 6, 7, 1, 5, 3]


@given(strategies.values)
def test_raw_and_decoded_values_have_the_same_canonical_text(value):
    text = jcs(value)
    assert jcs_raw(msgspec.json.encode(value)) == text
    assert jcs_raw(json.dumps(value, indent=1).encode()) == text
    assert jcs_raw(text.encode()) == text


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_a_number_reads_back_as_itself(number):
    assert float(jcs(number)) == number


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b" ",
        b"nul",
        b"01",
        b"1.",
        b"+1",
        b"NaN",
        b"1e400",
        b"9" * 400,
        b'"\\ud800"',
        b'"\\udc00\\ud800"',
        b'"\xff"',
        b'"a\x01"',
        b'"a',
        b"[1,]",
        b"{'a':1}",
        b'{"a":1}x',
        b'["\xed\xa0\x80"]',
        b"[" * 5000 + b"]" * 5000,
        b"[" * (MAX_DEPTH + 1) + b"]" * (MAX_DEPTH + 1),
        b'{"a":' * (MAX_DEPTH + 1) + b"1" + b"}" * (MAX_DEPTH + 1),
    ],
    ids=lambda raw: repr(raw[:20]),
)
def test_a_value_without_a_canonical_form_is_rejected(raw):
    with pytest.raises(ValidationError):
        jcs_raw(raw)


def test_values_may_be_nested_up_to_the_limit():
    raw = b"[" * MAX_DEPTH + b"]" * MAX_DEPTH
    assert jcs_raw(raw).encode() == raw


@pytest.mark.parametrize("value", [float("nan"), float("inf"), "\ud800", {1: 2}, {1, 2}, b"x", 10**400])
def test_a_value_that_json_cannot_represent_is_rejected(value):
    with pytest.raises(ValidationError):
        jcs(value)


def test_equal_numbers_have_one_canonical_form():
    spellings = [b"1.0", b"1", b"1e0", b"10E-1"]
    assert {jcs_raw(ColumnValue("a", msgspec.Raw(spelling)).value) for spelling in spellings} == {"1"}


def test_the_number_of_an_id_is_computed_from_its_prefix_or_its_hash():
    real = hashlib.sha256(b"x").hexdigest()
    assert id_number(real) == int(real[:16], 16)
    for other in ("x", real.upper(), real[:-1], real + "\n", ""):
        assert id_number(other) == int.from_bytes(hashlib.sha256(other.encode()).digest()[:8], "big")


@pytest.mark.parametrize("ids", [[], ["ab" * 32, "0" * 64], ["ab" * 32, "x"], ["AB" * 32], ["a" * 63, "b" * 65]])
def test_numbers_of_many_ids_equal_the_single_numbers(ids):
    assert id_numbers(ids) == b"".join(id_number(each).to_bytes(8, "big") for each in ids)
