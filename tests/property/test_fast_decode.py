"""Log bodies taken apart without the JSON decoder give the columns that it gives."""

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakesync.model.errors import ValidationError
from lakesync.model.types import ColumnValue, RowDelta
from lakesync.wire.fast_decode import decode_columns
from lakesync.wire.history import delta_columns
from lakesync.wire.json import decode_deltas
from lakesync.wire.log import encode_body, unpack_body

SPELLED = [
    "0", "-0", "1.50", "1e3", "-12", "123456789012345678901", "true", "null", '""', '"\\""', '"\\\\"', '"\\\\\\""',
    '"{\\"column\\":"', '"}],["', '{"column":"x","value":1}', '[{"op":"INSERT"},[]]', '"\\u00e9é"', '"a\\nb"', "{}",
    "[]", '[{"column":"x","value":1},{"column":"y","value":2}]', '{ "b" : 1, "a":[ ] }',
]  # fmt: skip
TEXTS = st.sampled_from(["r", 'a"b', "\\", '\\"', "é\n", "{[", "]}", "\U0001f600", "f" * 64])
CELLS = st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from(SPELLED)), max_size=4)
OPS = st.sampled_from(["INSERT", "UPDATE", "DELETE"])


def delta(op, texts, cells, hlc):
    row, client, identity = texts
    columns = tuple(ColumnValue(name, msgspec.Raw(text.encode())) for name, text in cells)
    return RowDelta(op, "t", row, client, columns, hlc, identity)


DELTAS = st.builds(delta, OPS, st.tuples(TEXTS, TEXTS, TEXTS), CELLS, st.integers(0, 2**63 - 1))


@settings(deadline=None, max_examples=60)
@given(pushes=st.lists(st.lists(DELTAS, max_size=4), max_size=4))
def test_the_fast_decoder_equals_the_full_decoder(pushes):
    bodies = [unpack_body(encode_body(push)) for push in pushes]
    found = decode_columns(bodies)
    assert found is not None
    assert found.counts.tolist() == [len(push) for push in pushes]
    expected = delta_columns([delta for body in bodies for delta in decode_deltas(body)])
    for column, wanted in zip(found.columns, expected, strict=True):
        column.validate(full=True)
        assert column.to_pylist() == wanted.to_pylist()


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{}",
        b"[",
        b"[{}]",
        b"{}]",
        b'[{"op":"INSERT","table":"t","rowId":"r","clientId":"c","columns":[],"hlc":1,"deltaId":"d"},1]',
        b'[{"op":"INSERT","table":"t","rowId":"r","clientId":"c","columns":[1],"hlc":1,"deltaId":"d"}]',
        b'[{"table":"t"}]',
        b'["a"]',
        b'[ {"op":"INSERT","table":"t","rowId":"r","clientId":"c","columns":[],"hlc":1,"deltaId":"d"}]',
        b'[{"table":"t","op":"INSERT","rowId":"r","clientId":"c","columns":[],"hlc":1,"deltaId":"d"}]',
        b'[{"op":"UPSERT","table":"t","rowId":"r","clientId":"c","columns":[],"hlc":1,"deltaId":"d"}]',
        b'[{"op":"INSERT","table":"t","rowId":"r","clientId":"c","columns":[{"value":1,"column":"a"}],"hlc":1,"deltaId":"d"}]',
    ],
)
def test_other_layouts_are_left_to_the_full_decoder(body):
    usual = b'[{"op":"INSERT","table":"t","rowId":"r","clientId":"c","columns":[],"hlc":1,"deltaId":"d"}]'
    assert decode_columns([usual]) is not None
    for bodies in ([body], [usual, body], [body, usual]):
        assert decode_columns(bodies) is None


def test_a_value_without_a_canonical_form_is_rejected():
    delta = RowDelta("INSERT", "t", "r", "c", (ColumnValue("a", msgspec.Raw(b"1e999")),), 1, "d")
    with pytest.raises(ValidationError, match="1e999 is not a JSON value"):
        decode_columns([unpack_body(encode_body([delta]))])
