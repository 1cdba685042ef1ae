import msgspec
import pytest
from msgspec import Raw

from lakehouse.tables.merge_job import CHECKS, STATE_NAMES
from lakehouse.tables.writes import TOUCHED
from lakesync.adapters.sql import delta_table, follower_state, row_tables
from lakesync.adapters.sql.delta_table import DELTAS_TABLE
from lakesync.adapters.sql.follower_state import DEAD_LETTERS_TABLE, MARKS_TABLE
from lakesync.analysis.plans import BASE_COLUMNS
from lakesync.model.errors import SchemaError
from lakesync.model.schema import RESERVED_COLUMNS, RESERVED_TABLES, check_delta, evolve, parse_schema
from lakesync.model.types import ColumnValue, RowDelta

TODOS = {
    "table": "todos",
    "columns": [
        {"name": "title", "type": "string"},
        {"name": "rank", "type": "number"},
        {"name": "done", "type": "boolean"},
        {"name": "extra", "type": "json"},
        {"name": "never", "type": "null"},
    ],
}


def schema(**changes):
    return parse_schema({**TODOS, **changes})


def columns(*pairs):
    return [{"name": name, "type": kind} for name, kind in pairs]


def test_a_schema_has_the_documented_defaults():
    found = schema()
    assert (found.primary_key, found.soft_delete) == (("row_id",), True)
    assert (found.source_table, found.external_id_column) == (None, None)


def test_a_schema_reads_back_from_its_json():
    found = schema(sourceTable="src", primaryKey=["title", "row_id"], softDelete=False, externalIdColumn="title")
    assert parse_schema(msgspec.json.decode(msgspec.json.encode(found))) == found
    assert b'"sourceTable":"src"' in msgspec.json.encode(found)


def test_a_column_reference_may_have_the_references_form():
    reference = {"table": "issues", "column": "key", "cardinality": "many-to-one"}
    found = schema(columns=[{"name": "issue", "type": "string", "references": reference}])
    assert found.columns[0].references == "issues.key"
    assert found == schema(columns=[{"name": "issue", "type": "string", "references": "issues.key"}])
    wrong_objects = ({"table": "issues"}, {"table": "a.b", "column": "c"}, {"table": "issues", "column": ""})
    for wrong in (*wrong_objects, "nonsense; drop", "issues", "a.b.c", ""):
        with pytest.raises(SchemaError, match="references of column 'issue'"):
            schema(columns=[{"name": "issue", "type": "string", "references": wrong}])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"table": "1"}, "'1'"),
        ({"table": None}, "table"),
        ({"columns": []}, "no columns"),
        ({"columns": columns(("a b", "string"))}, "'a b'"),
        ({"columns": columns(("a", "text"))}, r"'text'.*columns\[0\].*one of string, number, boolean, json"),
        ({"columns": columns(("a", "string"), ("a", "number"))}, "'a' and 'a'.*are the same"),
        ({"columns": columns(("a", "string"), ("A", "number"))}, "'a' and 'A'.*only in case"),
        ({"primaryKey": []}, "primaryKey"),
        ({"primaryKey": ["nope"]}, "'nope'"),
        ({"primaryKey": ["title", "title"]}, "twice"),
        ({"externalIdColumn": "nope"}, "'nope'"),
        ({"sourceTable": "a;b"}, "'a;b'"),
        ({"softDelete": "yes"}, "softDelete"),
        *(({"columns": columns((name, "string"))}, f"'{name}'") for name in sorted(RESERVED_COLUMNS)),
        ({"columns": columns(("_Cells", "string"))}, "'_Cells'"),
        *(({"table": name}, f"'{name}'") for name in sorted(RESERVED_TABLES)),
        ({"sourceTable": "LakeSync_Deltas"}, "'LakeSync_Deltas'"),
        ({"sourceTable": "sqlite_x"}, "sourceTable 'sqlite_x'"),
        ({"sourceTable": "_lakesync_x"}, "sourceTable '_lakesync_x'"),
    ],
)
def test_an_invalid_table_schema_is_rejected_with_the_reason(changes, message):
    with pytest.raises(SchemaError, match=message):
        schema(**changes)


def test_the_reserved_tables_are_those_that_destinations_make():
    assert {
        DELTAS_TABLE,
        MARKS_TABLE,
        DEAD_LETTERS_TABLE,
        follower_state.ROW_KEYS_TABLE,
        follower_state._LETTERS_SCRATCH,
        delta_table._SCRATCH,
        row_tables._SCRATCH,
    } == RESERVED_TABLES


@pytest.mark.parametrize("obj", [None, [], "x", 1, {}])
def test_an_invalid_schema_is_rejected(obj):
    with pytest.raises(SchemaError):
        parse_schema(obj)


def test_evolution_adds_columns_after_the_old_ones():
    new = schema(columns=columns(("extra2", "json"), *((c["name"], c["type"]) for c in reversed(TODOS["columns"]))))
    evolved = evolve(schema(), new)
    assert [column.name for column in evolved.columns] == ["title", "rank", "done", "extra", "never", "extra2"]
    assert evolve(evolved, evolved) == evolved


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"columns": TODOS["columns"][1:]}, "'title'"),
        ({"columns": [{"name": "title", "type": "json"}, *TODOS["columns"][1:]]}, "'title'.*json"),
        ({"columns": [{**TODOS["columns"][0], "references": "users.id"}, *TODOS["columns"][1:]]}, "'title'"),
        ({"primaryKey": ["title"]}, "'title'"),
        ({"externalIdColumn": "title"}, "'title'"),
        ({"softDelete": False}, "softDelete of table"),
        ({"sourceTable": "other"}, "sourceTable of table 'todos' is None and cannot become 'other'"),
        ({"table": "other"}, "'other'"),
    ],
)
def test_an_evolution_that_is_not_additive_is_rejected_with_the_reason(changes, message):
    with pytest.raises(SchemaError, match=message):
        evolve(schema(), schema(**changes))


VALUES = {
    "string": [b'""', b'"x"', b"null"],
    "number": [b"0", b"1", b"-1.5e3", b"9", b"null"],
    "boolean": [b"true", b"false", b"null"],
    "json": [b"{}", b"[1]", b'"x"', b"1", b"true", b"null"],
    "null": [b"null"],
}
NAMES = {"string": "title", "number": "rank", "boolean": "done", "json": "extra", "null": "never"}


@pytest.mark.parametrize("kind", VALUES)
@pytest.mark.parametrize("value", sorted({value for values in VALUES.values() for value in values}))
def test_a_value_that_does_not_fit_its_column_is_an_error_with_the_column(kind, value):
    delta = RowDelta("UPDATE", "todos", "r", "c", (ColumnValue(NAMES[kind], Raw(value)),), 1, "i")
    message = check_delta(schema(), delta)
    if kind == "json" or value == b"null" or value in VALUES[kind]:
        assert message is None
    else:
        assert repr(NAMES[kind]) in message
        assert kind in message


def test_an_unknown_column_is_named_and_a_delete_fits():
    unknown = RowDelta("UPDATE", "todos", "r", "c", (ColumnValue.of("nope", 1),), 1, "i")
    assert "'nope'" in check_delta(schema(), unknown)
    assert check_delta(schema(), RowDelta("DELETE", "todos", "r", "c", (), 1, "i")) is None


@pytest.mark.parametrize("name", [*CHECKS, *TOUCHED, *STATE_NAMES, *BASE_COLUMNS])
def test_no_column_may_have_a_name_that_merges_and_queries_use(name):
    with pytest.raises(SchemaError, match="choose another"):
        parse_schema({"table": "t", "columns": [{"name": name.upper(), "type": "string"}]})
