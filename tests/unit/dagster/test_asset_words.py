"""The metadata of every asset in a code location with all features, before any materialisation."""

import re

import dagster as dg
import pytest

from lakehouse.schema_snapshot import PolledConnector, SchemaSnapshot
from lakesync.config import load
from lakesync.model.schema import parse_schema
from lakesync_dagster.definitions import make_definitions
from tests.unit.dagster.test_movement import DECLARED

COLUMNS = [{"name": "carrier", "type": "string"}, {"name": "delay", "type": "number"}]
FLIGHTS = parse_schema({"table": "flights", "columns": COLUMNS})
SNAPSHOT = SchemaSnapshot(
    (FLIGHTS,),
    {"flights": ("g",)},
    (PolledConnector("g", "desk", "jira", ("flights",), 60_000),),
    {"": (FLIGHTS,), "shop": (FLIGHTS,)},
)
GROUPS = {"staging": "gateway", "deltas": "flush", "tables_shop": "tables"}
"""The group of a key's first part, if their names differ."""
STAGES = {
    *(
        "clients",
        "ingest",
        "gateway",
        "flush",
        "tables",
        "checkpoint_snapshots",
        "checkpoint",
        "maintenance",
        "erasure",
    ),
    *("destinations", "flows", "tiers", "migrations", "backends"),
}
WITHOUT_PLACE = {"clients", "maintenance", "erasure"}
"""Groups of assets without a storage URI: the clients' databases, and work on other assets' tables."""
WITHOUT_COLUMNS = {"gateway", "checkpoint_snapshots", "checkpoint", "backends", "maintenance", "erasure"}


@pytest.fixture(scope="module")
def nodes(tmp_path_factory):
    folder = tmp_path_factory.mktemp("words")
    with pytest.MonkeyPatch.context() as patched:
        (folder / "lakesync.toml").write_text(DECLARED + '[gateways.shop]\nnamespace = "shop"\n')
        patched.setenv("LAKESYNC_CONFIG", str(folder / "lakesync.toml"))
        patched.setenv("PG", "postgresql://u:hidden@h/d")
        patched.setenv("MY", "mysql://u:hidden@h/d")
        staging = {"staging": {"url": "postgresql://u:hidden@staging/d"}}
        config = load({"data_dir": folder / "data", "lake": {"warehouse": "s3://b/warehouse"}, **staging})
        graph = make_definitions(config, SNAPSHOT).resolve_asset_graph()
    return {node.key.to_user_string(): node for node in graph.asset_nodes}


def test_each_asset_has_a_stage_an_owner_kinds_and_a_description_of_one_sentence(nodes):
    assert {node.group_name for node in nodes.values()} == STAGES
    for name, node in nodes.items():
        begin = name.partition("/")[0]
        assert node.group_name == GROUPS.get(begin, begin), name
        assert re.fullmatch(r"[A-Z][^\n]*\.", node.description), name
        assert not re.search(r"[.!?]\s", node.description), f"{name} has more than one sentence: {node.description}"
        assert node.owners == ["team:lakesync"], name
        assert 1 <= len(node.kinds) <= 3, name


def test_exactly_the_assets_that_use_spark_have_the_kind_spark(nodes):
    made = {name: node.assets_def for name, node in nodes.items() if node.is_materializable}
    asks = {name for name, asset in made.items() if "pyspark" in asset.required_resource_keys}
    assert asks == {name for name, node in nodes.items() if "spark" in node.kinds}
    assert asks == made.keys()


def test_assets_with_data_have_their_uri_and_columns_and_no_password(nodes):
    for name, node in nodes.items():
        uri, columns = node.metadata.get("dagster/uri"), node.metadata.get("dagster/column_schema")
        assert (uri is None) == (node.group_name in WITHOUT_PLACE), name
        assert "hidden" not in str(node.metadata), name
        assert (columns is None) == (node.group_name in WITHOUT_COLUMNS), name
        if columns is not None:
            described = [column.description for column in columns.columns]
            assert described, name
            assert node.group_name in {"clients", "ingest"} or any(described), name
    places = {name: node.metadata.get("dagster/uri") for name, node in nodes.items()}
    assert places["deltas"] == "s3://b/warehouse/lakesync/deltas"
    assert places["tables/flights"] == "s3://b/warehouse/tables/flights"
    assert places["tables_shop/flights"] == "s3://b/warehouse/shop/flights"
    assert places["ingest/g/desk/flights"] == "s3://b/warehouse/lakesync/landing"
    assert places["staging/log"] == places["checkpoint_snapshots"] == "postgresql://u:…@staging/d"
    assert places["checkpoint"].startswith("file://")


def test_assets_of_the_lake_describe_column_lineage_in_markdown(nodes):
    for name in ("deltas", "tables/flights", "tables_shop/flights", "checkpoint_snapshots", "checkpoint"):
        assert isinstance(nodes[name].metadata["lineage"], dg.MarkdownMetadataValue), name
