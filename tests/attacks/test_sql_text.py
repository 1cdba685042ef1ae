"""Values that contain SQL: no value may reach the text of a statement, in any dialect."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import duckdb
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lakehouse.erasure.coverage import deltas_of, polled_rows_of
from lakehouse.maintenance import literal
from lakehouse.sessions import session
from lakehouse.table_access import read_version
from lakehouse.table_creation import ensure_gateways, set_properties
from lakehouse.table_definitions import LakeNames
from lakesync.adapters import DeltaBatch, DeltaQuery, StoredDelta
from lakesync.analysis.merge_sql import FRAGMENTS, quoted, visible_rows
from lakesync.connectors.jira.api import quote
from lakesync.connectors.query_text import balanced_condition
from lakesync.connectors.salesforce.api import soql_literal as soql_text
from lakesync.model.errors import ConfigurationError
from lakesync.staging import open_store
from lakesync.staging.records import Erasure
from lakesync.testing import ManualClock
from lakesync.testing.servers.jira import jql as fake_jql
from lakesync.testing.servers.salesforce import soql as fake_soql
from tests.conformance.adapter_places import DATABASES, DEEP, start_server
from tests.conformance.book import Book, make_delta

ROOT = Path(__file__).parents[2]
PACKAGES = ("lakesync", "lakehouse", "resources", "assets", "sensors", "gateway", "lakesync_dagster")
HOSTILE = [
    "r'1 ${env:HOME}",
    "${env:SPARK_CONNECT_AUTHENTICATE_TOKEN}",
    "${spark.app.id}",
    "' OR '1'='1",
    "'; DROP TABLE log;--",
    '"; DROP TABLE "log";--',
    "\\'; DELETE FROM log;--",
    "`",
    "a\\",
    "\\",
    "'",
    "''",
    ":p0",
    "?",
    "%s",
    "$1",
    "{0}",
    "/* */ --",
    "line\nbreak\r\ttab",
    "nul-free \u2028 \U0001f600",
    ") OR key IS NOT EMPTY",
]
texts = st.one_of(st.sampled_from(HOSTILE), st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1))
few = settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))

_RUNS = {"sql", "execute", "executemany", "where", "filter", "expr", "query", "stream", "copy"}
"""Methods that take a statement, or a part of one."""
_VALUES = {
    *("row_id", "rowId", "client_id", "clientId", "delta_id", "value", "values", "claims", "constant"),
    *("columns_json", "body", "params", "password", "token", "secret"),
}
"""Names under which values of tenants are found."""
_NAMES = {
    ("lakesync/client/sqlite/table_validation.py", "{invalid_id.format('row_id')}"),
}
"""Names that look like values, but are SQL with quoted column names."""


def named_in(expression):
    """Every name, attribute and key of an expression."""
    for node in ast.walk(expression):
        if isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def offences(source):
    """Statements whose text is built from the name of a value, or with `repr`."""
    for call in ast.walk(ast.parse(source)):
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute) or call.func.attr not in _RUNS:
            continue
        for argument in call.args[:1]:
            for node in ast.walk(argument):
                if isinstance(node, ast.FormattedValue) and (node.conversion == ord("r") or _is_value(node.value)):
                    yield call.lineno, "{" + ast.unparse(node.value) + "}"


def _is_value(expression):
    return not _VALUES.isdisjoint(named_in(expression))


def test_no_statement_is_made_with_a_value_in_its_text():
    found = [
        f"{path.relative_to(ROOT)}:{line} {offence}"
        for package in PACKAGES
        for path in sorted((ROOT / package).rglob("*.py"))
        if "testing" not in path.parts
        for line, offence in offences(path.read_text())
        if (str(path.relative_to(ROOT)), offence) not in _NAMES
    ]
    assert found == []


@pytest.mark.parametrize(
    "source",
    [
        "spark.sql(f\"DELETE FROM t WHERE row = '{each.row_id}'\")",
        "connection.execute(f'SELECT {value!r}')",
        "frame.where(f\"client = '{request['client_id']}'\")",
    ],
)
def test_the_check_finds_a_statement_with_a_value_in_its_text(source):
    assert list(offences(source))


@pytest.fixture(params=[pytest.param(kind, marks=[pytest.mark.deep] * (kind in DEEP)) for kind in DATABASES])
def adapter(request, tmp_path):
    """An empty backend of each kind."""
    start_server(request)
    opened = DATABASES[request.param](tmp_path)
    yield opened
    opened.close()


def test_adapters_return_hostile_values_unchanged(adapter):
    deltas = [make_delta(text, number, text, title=text) for number, text in enumerate(HOSTILE, 1)]
    stored = tuple(StoredDelta("g", 256 * place, each) for place, each in enumerate(deltas, 1))
    adapter.insert_deltas(DeltaBatch("g.main.1.1-1", "g", stored))
    found = adapter.query_deltas_since(DeltaQuery(limit=1000)).deltas
    assert {(each.delta.row_id, each.delta.client_id) for each in found} == {(text, text) for text in HOSTILE}
    for text in HOSTILE:
        state = adapter.get_latest_state("g", "notes", [text])
        assert list(state) == [text]


@pytest.mark.parametrize("scheme", ["memory", "postgres"])
def test_staging_stores_hostile_ids(scheme, request):
    url = "memory://" if scheme == "memory" else request.getfixturevalue("own_database")
    store = open_store(url, ManualClock())
    store.open(Book())
    try:
        store.ensure_gateway("g")
        deltas = [make_delta("c", number, text, title=text) for number, text in enumerate(HOSTILE, 1)]
        store.submit("g", Book().push(deltas)).result()
        rows = store.read("g", lambda view: view.rows([("notes", text) for text in HOSTILE])).result()
        assert {row_id for _, row_id in rows} == set(HOSTILE)
    finally:
        store.close()


@given(texts)
@few
def test_duckdb_reads_only_the_named_column(text):
    query, parameters = visible_rows({text: "string"})
    assert set(parameters.values()) == {text}
    assert query.replace(quoted(text), "") == visible_rows({"x": "string"})[0].replace('"x"', "")
    database = duckdb.connect()
    database.execute(f"CREATE TABLE fragments ({FRAGMENTS})")
    row = """('g', 'r', 1, 1, 'c', 'd', MAP {$name: '"v"'}, NULL, {'hlc': 1, 'client_id': 'c'})"""
    database.execute(f"INSERT INTO fragments VALUES {row}", {"name": text})
    assert database.execute(query, parameters).fetchall() == [("g", "r", 1, "v")]


def read_text(written, quote, letters, refused):
    """Parse a leading quoted text by the vendor's published grammar; return the text and the rest."""
    assert written[0] == quote
    said, at = "", 1
    while written[at] != quote:
        each = written[at]
        if each != "\\":
            assert not refused(each), f"{each!r} unescaped"
            said, at = said + each, at + 1
        elif written[at + 1] == "u":
            said, at = said + chr(int(written[at + 2 : at + 6], 16)), at + 6
        else:
            said, at = said + letters[written[at + 1]], at + 2
    return said, written[at + 1 :]


def control(each):
    return each < " " or "\x7f" <= each <= "\x9f"


def refused_by_jql(each):
    return control(each) or "\ufdd0" <= each <= "\ufdef" or each in "\ufffe\uffff"


LETTERS = {"n": "\n", "r": "\r", "t": "\t", "'": "'", '"': '"', "\\": "\\"}
anything = st.one_of(texts, st.text(st.characters(codec="utf-8"), min_size=1))


@given(anything)
def test_jql_reads_an_escaped_text_unchanged(text):
    written = quote(text)
    assert read_text(f"{written} AND", '"', {**LETTERS, " ": " "}, refused_by_jql) == (text, " AND")
    tokens = fake_jql._split(f"key = {written}")
    assert [fake_jql._unquoted(each) for each in tokens[2:]] == [text]


@given(anything)
def test_soql_reads_an_escaped_text_unchanged(text):
    written = soql_text(text)
    assert read_text(f"{written} LIMIT 1", "'", {**LETTERS, "b": "\b", "f": "\f"}, control) == (text, " LIMIT 1")
    tokens = fake_soql._split(f"SELECT Id FROM Account WHERE Name = {written} LIMIT 1")
    assert fake_soql._value(tokens[-3]) == text


@pytest.mark.parametrize("text", ['x ~ a\\" ) OR (y ~ "zz\\"w"', "x = a\\' ) OR (y = 'zz\\'w'", "a) OR (b", "a\\"])
def test_a_filter_that_escapes_its_brackets_is_rejected(text):
    """JQL accepts a backslash outside quotation marks, which would make the bracket after it literal."""
    with pytest.raises(ConfigurationError):
        balanced_condition(text, "jql")


@given(st.text(alphabet="ab \"'\\()", max_size=12))
@settings(max_examples=3000, deadline=None)
def test_every_accepted_filter_stays_within_its_brackets(text):
    try:
        kept = balanced_condition(text, "jql")
    except ConfigurationError:
        return
    depth, quote, at = 0, "", 0
    while at < len(kept):
        each = kept[at]
        if each == "\\":
            at += 1
        elif quote:
            quote = "" if each == quote else quote
        elif each in "\"'":
            quote = each
        else:
            depth += (each == "(") - (each == ")")
        assert depth >= 0
        at += 1
    assert (depth, quote, at) == (0, "", len(kept))


def erasure(**named):
    found = dict.fromkeys(("table", "row_id", "client_id"))
    found |= {"gateway": "g", "seq": 1, "hlc": 1 << 40, "arrival": 1, "requested_ms": 0}
    return Erasure(**{**found, **named})


def test_an_erasure_with_hostile_ids_selects_only_its_own_rows(spark_server):
    """An erasure of rows and clients with hostile ids selects exactly their own deltas."""
    with session(spark_server["config"]) as spark:
        rows = [("g", "notes", text, text, 1, "main", "desk") for text in HOSTILE]
        texts = ", ".join(f"{name} string" for name in ("gateway", "table_name", "row_id", "client_id"))
        names = f"{texts}, hlc long, shard string, connector string"
        spark.createDataFrame(rows, names).createOrReplaceTempView("hostile")
        for text in HOSTILE:
            by_row, by_client = erasure(table="notes", row_id=text), erasure(client_id=text)
            for request in (by_row, by_client):
                found = deltas_of([request]).select(spark, "hostile", "row_id").collect()
                assert [row["row_id"] for row in found] == [text]
            found = polled_rows_of(by_row, "desk").select(spark, "hostile", "row_id").collect()
            assert [row["row_id"] for row in found] == [text]
        none = erasure(client_id="connector:' OR '1'='1")
        assert polled_rows_of(none, None).select(spark, "hostile").count() == 0


def test_properties_of_spark_tables_have_the_given_values(spark_server):
    """Ids of gateways, tables and connectors are in the keys and values of tables' properties."""
    names = LakeNames("lake", "sys_properties", "tab_properties")
    with session(spark_server["config"]) as spark:
        ensure_gateways(spark, names)
        for text in HOSTILE:
            set_properties(spark, names.gateways, {f"x.{text}": text, f"y.{text}": json.dumps({text: 1})})
        found = read_version(spark, names.gateways).properties
        for text in HOSTILE:
            assert (found[f"x.{text}"], found[f"y.{text}"]) == (text, json.dumps({text: 1}))
            assert spark.sql(f"SELECT {literal(text)} AS said").collect()[0]["said"] == text
