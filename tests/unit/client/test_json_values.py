"""JSON that other clients would read differently is rejected when written; all other JSON arrives unchanged."""

from __future__ import annotations

import json
import sqlite3
import time
from contextlib import closing

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from lakesync.client.sqlite.sql_values import VALUE_CONSTRAINTS
from lakesync.model.delta import MAX_DEPTH, jcs_raw
from lakesync.model.errors import ConfigurationError, ValidationError

NOTES = {"table": "notes", "columns": [{"name": "value", "type": "json"}]}
SCHEMAS = [NOTES]

LEAVES = st.sampled_from(
    [
        *("1e999", "-1E400", "0.1e1000", "1.8e308", "1" * 309, "-" + "9" * 400),
        *("1e308", "17976931348623157e292", "1e-999", "-0", "1" * 308, "12345678901234567890123", "true", "null"),
        *(r'"\ud800"', r'"\uDC00x"', r'"\ud83d\u0041"', r'"\ude00\ud83d"', r'"\ud800\ud800\udc00"'),
        *(r'"\ud83d\ude00"', r'"\uD83D\uDE00x\\ud800"', r'"\\ud800"', r'"a\u0000b"', '"\ud7ff 한국어 1e999 😀"'),
        *('"x"', '"' + "1" * 400 + '"', "NaN", "'x'", "[1,2,]", "+1", ""),
    ]
)
KEYS = st.sampled_from(['"a"', '"a.b[0]"', r'"\ud800"', r'"\ud83d\ude00"', '"' + "." * 300 + '"', '"한"'])


def deep(levels, inner, key):
    opened = [("[", "]") if key is None else ("{" + key + ":", "}") for _ in range(levels)]
    return "".join(each for each, _ in opened) + inner + "".join(each for _, each in opened)


TEXTS = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=3).map(lambda parts: f"[{', '.join(parts)}]")
        | st.tuples(KEYS, inner).map(lambda pair: f"{{{pair[0]}: {pair[1]}}}")
        | st.builds(deep, st.sampled_from([1, 50, 99, 100, 101]), inner, st.none() | KEYS)
    ),
    max_leaves=6,
)


def refused(text):
    db = sqlite3.connect(":memory:")
    try:
        return bool(db.execute(f"SELECT {VALUE_CONSTRAINTS['json'].violation.format('?1')}", (text,)).fetchone()[0])
    finally:
        db.close()


def has_no_canonical_form(text):
    try:
        json.loads(text, parse_constant=pytest.fail)
        jcs_raw(text.encode())
    except (ValueError, ValidationError, pytest.fail.Exception):
        return True
    return False


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(TEXTS)
@example(deep(MAX_DEPTH, "1", None))
@example(deep(MAX_DEPTH + 1, "1", None))
@example(deep(MAX_DEPTH, "1", '"a"'))
@example(deep(MAX_DEPTH + 1, "[]", '"a"'))
@example("{}\0junk")
def test_sqlite_rejects_exactly_the_json_without_a_canonical_form(text):
    assert refused(text) == has_no_canonical_form(text)


@pytest.mark.parametrize("text", ["1e999", r'{"a": ["\ud800"]}', "[" * 101 + "]" * 101])
def test_json_that_others_would_read_differently_is_rejected_on_every_write_path(opened, tmp_path, text):
    alice = opened()
    with pytest.raises(sqlite3.IntegrityError, match="column value of notes takes JSON text of finite numbers"):
        alice.conn.execute("INSERT INTO notes VALUES ('a', ?)", (text,))
    alice.conn.rollback()
    alice["notes"].insert({"value": [1, {"a": "😀"}]}, row_id="a")
    with closing(sqlite3.connect(tmp_path / "alice.db")) as db, db, pytest.raises(sqlite3.IntegrityError):
        db.execute("UPDATE notes SET value = ?", (text,))
    db.close()
    alice.sync()
    bob = opened("bob")
    bob.sync()
    assert bob["notes"]["a"]["value"] == [1, {"a": "😀"}]


def test_a_table_that_already_has_invalid_json_is_named_when_it_is_opened(opened):
    with pytest.raises(ConfigurationError, match="row 'a' of table 'notes' has '1e999' in column 'value'"):
        opened(sql="CREATE TABLE notes (row_id TEXT PRIMARY KEY, value TEXT); INSERT INTO notes VALUES ('a', '1e999')")


@pytest.mark.parametrize("key", ["a", "." * 300])
def test_json_with_many_objects_is_not_parsed_once_for_each(opened, key):
    # 12,000 objects took half a minute when each of them parsed the whole text again
    value = {key: [{"n": number} for number in range(12_000)]}
    with opened() as db:
        started = time.process_time()
        db["notes"].insert({"value": value}, row_id="n1")
        assert time.process_time() - started < 5
        assert db["notes"]["n1"]["value"] == value
