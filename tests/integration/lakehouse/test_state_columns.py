"""B5: values that do not fit a column of a state table, and columns that are added to a schema later."""

import pytest

from lakehouse.checks import unfit_values
from lakehouse.schema_snapshot import join_schemas
from lakehouse.table_creation import ensure_state
from lakehouse.tables.merging import merge_table
from lakesync.model.errors import SchemaError
from tests.integration.lakehouse.state_support import FIRST, TYPES, delta, schema
from tests.lake_support import arrivals, fill

pytestmark = pytest.mark.timeout(900)  # Spark's first queries take a minute on a busy machine


def test_b5_a_value_that_does_not_fit_is_null_counted_and_kept(spark, names):
    (arrival,) = arrivals(FIRST, 1)
    rows = [
        delta(
            "INSERT", "good", 1, title='a "quoted" \n é \U0001f600', size=-1.5e300, done=False, extra={"k": [1, None]}
        ),
        delta("INSERT", "bad", 1, title=7, size="7", done="true", extra="text"),
        delta("INSERT", "null", 1, title=None, size=None, done=None, extra=None),
        delta("DELETE", "gone", 1),
    ]
    fill(spark, names, [(arrival, rows)])
    report = merge_table(spark, schema(), {"g": arrival}, names=names)
    assert (report.rows_merged, report.tombstones, report.rejected_values) == (4, 1, 3)
    typed = {row["_row"]: tuple(row[name] for name in TYPES) for row in spark.table(names.state("t")).collect()}
    assert typed == {
        "good": ('a "quoted" \n é \U0001f600', -1.5e300, False, '{"k":[1,null]}'),
        "bad": (None, None, None, '"text"'),
        "null": (None, None, None, None),
        "gone": (None, None, None, None),
    }
    cells = spark.table(names.state("t")).where("_row = 'bad'").toArrow()["_cells"].to_pylist()[0]
    assert {name: cell["value"] for name, cell in cells} == {
        "title": "7",
        "size": '"7"',
        "done": '"true"',
        "extra": '"text"',
    }
    assert rejected(spark, names) == {
        ("title", "string", "7"),
        ("size", "number", '"7"'),
        ("done", "boolean", '"true"'),
    }
    unfit = [(each.key, each.type) for each in unfit_values(spark, "t", names)]
    assert unfit == [("bad done", "boolean"), ("bad size", "number"), ("bad title", "string")]
    (mended,) = arrivals(FIRST, 1, start=60)
    fill(spark, names, [(mended, [delta("UPDATE", "bad", 2, title="seven", size=7)])])
    report = merge_table(spark, schema(), {"g": mended}, names=names)
    assert rejected(spark, names) == {("done", "boolean", '"true"')}


def rejected(spark, names):
    """The values of the row `bad` in the table of values that do not fit."""
    rows = spark.table(names.rejected).collect()
    assert {(row["gateway"], row["table_name"], row["row_id"]) for row in rows} == {("g", "t", "bad")}
    return {(row["column_name"], row["type"], row["value"]) for row in rows}


def test_a_contract_decides_about_columns_registered_later(spark, names):
    early, late = arrivals(FIRST, 2)
    fill(spark, names, [(early, [delta("INSERT", "r", 1, title="t", added=3)])])
    merge_table(spark, schema({"title": "string"}), {"g": early}, names=names)
    fill(spark, names, [(late, [delta("UPDATE", "r", 2, title="u")])])
    grown = schema({"title": "string", "added": "number"})
    with pytest.raises(SchemaError, match="columns added, which its state table lacks, and its contract is freeze"):
        merge_table(spark, grown, {"g": late}, names=names, contract="freeze")
    merge_table(spark, grown, {"g": late}, names=names, contract="discard")
    row = spark.table(names.state("t")).collect()[0]
    assert (row["title"], "added" in row.asDict()) == ("u", False)
    assert dict(row["_cells"])["added"]["value"] == "3"


def test_a_new_column_types_values_that_were_merged_before(spark, names):
    early, late = arrivals(FIRST, 2)
    fill(spark, names, [(early, [delta("INSERT", "r", 1, title="t", added=3)])])
    merge_table(spark, schema({"title": "string"}), {"g": early}, names=names)
    fill(spark, names, [(late, [delta("UPDATE", "r", 2, title="u")])])
    grown = schema({"title": "string", "added": "number"})
    merge_table(spark, grown, {"g": early}, names=names)
    merge_table(spark, schema({"title": "string"}), {"g": late}, names=names)
    row = spark.table(names.state("t")).collect()[0]
    assert (row["title"], row["added"]) == ("u", 3.0)
    with pytest.raises(SchemaError, match="only in case"):
        ensure_state(spark, schema(table="T"), names)


def test_gateways_that_spell_a_column_differently_share_a_table(spark, names):
    """The joined schema has both spellings, but a table of the lake cannot."""
    early, late = arrivals(FIRST, 2)
    fill(spark, names, [(early, [delta("INSERT", "r", 1, Title="t")])], "one")
    fill(spark, names, [(early, [delta("INSERT", "r", 1, title="u")])], "two")
    both = join_schemas(schema({"Title": "string"}), schema({"title": "string"}))
    merge_table(spark, both, {"one": early, "two": early}, names=names)
    fill(spark, names, [(late, [delta("UPDATE", "r", 2, Size=3)])], "one")
    grown = join_schemas(schema({"Title": "string", "Size": "number"}), schema({"title": "string", "size": "number"}))
    merge_table(spark, grown, {"one": late, "two": early}, names=names)
    rows = {row["_gateway"]: row for row in spark.table(names.state("t")).collect()}
    assert [field for field in spark.table(names.state("t")).columns if not field.startswith("_")] == ["Title", "Size"]
    assert (rows["one"]["Title"], rows["one"]["Size"], rows["two"]["Title"]) == ("t", 3.0, None)
    assert dict(rows["two"]["_cells"])["title"]["value"] == '"u"'


def test_an_interrupted_schema_change_is_completed_without_a_new_delta(spark, names):
    (early,) = arrivals(FIRST, 1)
    fill(spark, names, [(early, [delta("INSERT", "r", 1, title="t", added=3)])])
    merge_table(spark, schema({"title": "string"}), {"g": early}, names=names)
    grown = schema({"title": "string", "added": "number"})
    ensure_state(spark, grown, names)  # and the run is killed
    merge_table(spark, grown, {"g": early}, names=names)
    assert spark.table(names.state("t")).collect()[0]["added"] == 3.0
    assert not ensure_state(spark, grown, names).has_new_columns


def test_a_schema_with_another_type_keeps_the_type_of_the_lake(spark, names):
    early, late = arrivals(FIRST, 2)
    fill(spark, names, [(early, [delta("INSERT", "good", 1, size=3)])])
    merge_table(spark, schema({"size": "number"}), {"g": early}, names=names)
    fill(spark, names, [(late, [delta("INSERT", "bad", 2, size="large"), delta("INSERT", "new", 3, size=4)])])
    report = merge_table(spark, schema({"size": "string"}), {"g": late}, names=names)
    assert report.rejected_values == 1
    rows = {row["_row"]: row for row in spark.table(names.state("t")).collect()}
    assert {name: row["size"] for name, row in rows.items()} == {"good": 3.0, "bad": None, "new": 4.0}
    assert dict(rows["bad"]["_cells"])["size"]["value"] == '"large"'
    assert rejected(spark, names) == {("size", "number", '"large"')}
    assert dict(ensure_state(spark, schema({"SIZE": "string"}), names).columns) == {"size": "number"}
