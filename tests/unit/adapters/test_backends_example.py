"""The example of docs/adapters.md is a valid configuration, and moves the rows that it describes."""

import os
import re
from pathlib import Path

import pytest

from lakehouse.schema_snapshot import SchemaSnapshot
from lakesync import config
from lakesync.adapters import DeltaBatch, SqliteAdapter, StoredDelta
from lakesync.adapters.backend_config import open_backend, resolve_backend, write_targets
from lakesync.adapters.transfer.flow_pages import RowFilter
from lakesync.adapters.transfer.flows import run_flow
from lakesync.adapters.transfer.follower import DeltaSelection, follow_history
from lakesync.config import backends
from lakesync_dagster.definitions import make_definitions
from tests.conformance.book import make_delta
from tests.conformance.history_batches import history

ROOT = Path(__file__).parents[3]
EXAMPLE = ROOT / "examples" / "backends" / "lakesync.toml"


@pytest.fixture
def example(tmp_path, monkeypatch):
    """The example, in a separate folder."""
    for name in [name for name in os.environ if name.startswith("LAKESYNC_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    for name in ("WAREHOUSE", "ANALYTICS"):
        monkeypatch.setenv(name, f"sqlite://{tmp_path}/{name.lower()}.db")
    (tmp_path / "lakesync.toml").write_text(EXAMPLE.read_text().replace("/var/lib/lakesync", str(tmp_path)))
    return config.load()


def test_the_example_loads_in_the_code_location(example):
    found = make_definitions(example, SchemaSnapshot())
    names = {
        key.to_user_string() for asset in found.assets for key in ([asset.key] if hasattr(asset, "key") else asset.keys)
    }
    leaf_names = {f"destinations/main/{name}" for name in ("postgres", "analytics", "events")}
    assert names >= leaf_names | {"flows/large_orders", "flows/home", "tiers/aged", "migrations/leave"}


def test_the_examples_destination_and_flow_move_the_declared_rows(example, tmp_path):
    pushes = [
        (
            "shop",
            256,
            [make_delta("c", 1, "o1", table="orders", total=5000), make_delta("c", 2, "o2", table="orders", total=1)],
        ),
        ("shop", 512, [make_delta("c", 3, "k1", table="clicks", x=1)]),
    ]
    place = resolve_backend(example, example.destinations["main"].to)
    for leaf in write_targets(example, example.destinations["main"].to):
        adapter = open_backend(resolve_backend(example, leaf.name))
        wanted = [push for push in pushes if (push[2][0].table in leaf.tables) == bool(leaf.tables)]
        list(follow_history(adapter, leaf.name, DeltaSelection(leaf.tables, leaf.without), history(wanted)))
        assert adapter.newest_position() is not None, leaf.name
        adapter.close()
    whole = open_backend(place)
    assert set(whole.get_latest_state("shop", "clicks", ["k1"])) == {"k1"}
    whole.close()
    declared = example.flows["large_orders"]
    source, target = open_backend(resolve_backend(example, declared.source)), SqliteAdapter(tmp_path / "slice.db")
    source_rows = StoredDelta("shop", 768, make_delta("c", 9, "o3", table="orders", total=2000))
    source.insert_deltas(DeltaBatch("b", "shop", (source_rows,)))
    list(run_flow(source, target, "f", RowFilter.from_conditions(declared.where, tables=declared.tables)))
    assert set(target.get_latest_state(None, "orders", ["o1", "o2", "o3"])) == {"o1", "o3"}
    source.close()
    target.close()


def test_the_page_names_every_section_and_key():
    text = (ROOT / "docs" / "adapters.md").read_text()
    sections = {"routes": "Routes", "fan_out": "FanOut", "tiers": "Tiers", "destinations": "Destination"}
    sections |= {"flows": "Flow", "migrations": "Migration"}
    for section, model in sections.items():
        (row,) = re.findall(rf"^\| `\[{section}\.NAME\]` \|.*\| (.+) \|$", text, re.MULTILINE)
        fields = getattr(backends, f"Declared{model}").model_fields
        assert re.findall(r"`(\w+)`", row) == [field.alias or name for name, field in fields.items()], section
