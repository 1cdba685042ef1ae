"""Files of rows in each format; an error names the line that cannot be read."""

from __future__ import annotations

import pytest

from lakesync.cli.input_files import read_json, read_records
from lakesync.model.errors import ValidationError

TYPES = {"title": "string", "n": "number", "done": "boolean", "tags": "json"}


def read(tmp_path, name, text, types=TYPES):
    path = tmp_path / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return list(read_records(path, "id", lambda: types))


def test_csv_fields_have_the_types_of_the_schema(tmp_path):
    text = '\ufeffid,title,n,done,tags,other\r\n1e3,2024,2024,Yes,"[1, null]",7\r\n'
    text += '007,"a\nb",,0,,x\r\n3,,1.5,perhaps,,NaN\r\n4,,-1e400,,,\r\n'
    assert read(tmp_path, "rows.csv", text) == [
        {"id": "1e3", "title": "2024", "n": 2024, "done": True, "tags": [1, None], "other": 7},
        {"id": "007", "title": "a\nb", "n": None, "done": False, "tags": None, "other": "x"},
        {"id": "3", "title": None, "n": 1.5, "done": "perhaps", "tags": None, "other": "NaN"},
        {"id": "4", "title": None, "n": "-1e400", "done": None, "tags": None, "other": None},
    ]


def test_without_a_schema_csv_fields_have_inferred_types(tmp_path):
    text = "id,title,done\n1,2024,true\n2,007,no\n\n3,,\n"
    assert read(tmp_path, "rows.csv", text, {}) == [
        {"id": "1", "title": 2024, "done": True},
        {"id": "2", "title": "007", "done": "no"},
        {"id": "3", "title": None, "done": None},
    ]


def test_json_lines_end_only_at_newlines(tmp_path):
    assert read(tmp_path, "rows.jsonl", '{"a": "x\u2028y"}\r\n\n{"a": 1}\n') == [{"a": "x\u2028y"}, {"a": 1}]
    assert read(tmp_path, "rows.json", '\ufeff[{"a": 1}]') == [{"a": 1}]
    assert read(tmp_path, "rows.json", '\n [\n{"a": 1},\n{"a": 2}\n]\n') == [{"a": 1}, {"a": 2}]


def test_a_file_is_read_lazily(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text("id,title\n" + "1,a\n" * 100_000 + "2\n")
    found = read_records(path, "id", dict)
    assert next(found) == {"id": "1", "title": "a"}
    path.write_text("")  # the rest of the file is lost
    assert 1 < len(list(found)) < 99_999


@pytest.mark.parametrize(
    ("name", "text", "why"),
    [
        ("rows.csv", "id,title\n1,a\n2,b,c\n", r"rows\.csv, line 3: more fields than the header"),
        ("rows.csv", "id,title\n1\n", r"rows\.csv, line 2: fewer fields than the header"),
        ("rows.csv", "id,title,n,title\n1,a,2,b\n", r"rows\.csv: the header has 'title' twice"),
        ("rows.csv", b"id,title\n1,\xfc\n", r"rows\.csv is not UTF-8 text"),
        ("rows.jsonl", b'{"a": "\xfc"}\n', r"rows\.jsonl is not UTF-8 text"),
        ("rows.csv", 'id,title\n1,"a\n', r"rows\.csv, line \d: not CSV: unexpected end of data"),
        ("rows.csv", "id,tags\n1,[1\n", r"rows\.csv, line 2, tags: not JSON"),
        ("rows.jsonl", '{"a": 1}\n{"a": NaN}\n', r"rows\.jsonl, line 2: not JSON: NaN is not a JSON value"),
        ("rows.jsonl", '{"a": 1e400}\n', r"rows\.jsonl, line 1: not JSON: 1e400 is too large for a number"),
        (
            "rows.csv",
            f"id,tags,other\n1,{'[' * 100_000},\n",
            r"rows\.csv, line 2, tags: not JSON: .* nested too deeply",
        ),
        ("rows.jsonl", '{"a":' * 100_000, r"rows\.jsonl, line 1: not JSON: .* nested too deeply"),
        ("rows.json", '[{"a": 1}, 2]', r"rows\.json, item 2: '2' is not a JSON object"),
    ],
)
def test_errors_name_the_line(tmp_path, name, text, why):
    with pytest.raises(ValidationError, match=why):
        read(tmp_path, name, text)


def test_a_csv_field_without_a_type_may_be_nested_deeply(tmp_path):
    assert read(tmp_path, "rows.csv", f"id,other\n1,{'[' * 100_000}\n", {}) == [{"id": "1", "other": "[" * 100_000}]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("[" * 100_000, "file.json is not JSON: .* nested too deeply"),
        ('{"a": NaN}', "file.json is not JSON: NaN is not a JSON value"),
    ],
)
def test_a_json_file_is_checked(tmp_path, text, why):
    path = tmp_path / "file.json"
    path.write_text(text)
    with pytest.raises(ValidationError, match=why):
        read_json(path)
