"""`lakesync dlq` for the tables that destinations and flows could not write."""

from contextlib import closing

import pytest

from lakesync.adapters import SqliteAdapter
from lakesync.cli.remote.dead_letters import dead_letters_of_gateway, is_of_destination, retry_destination
from lakesync.config import load
from lakesync.model.errors import NotFoundError


@pytest.fixture
def config(tmp_path):
    """A destination and a flow with tables at one adapter, and two flows without tables."""
    return load(
        {
            "data_dir": tmp_path / "data",
            "adapters": {"copy": f"sqlite://{tmp_path}/copy.db", "old": f"sqlite://{tmp_path}/old.db"},
            "destinations": {"shop": {"to": "copy", "tables": ["orders"]}},
            "flows": {
                "notes": {"from": "old", "to": "copy", "tables": ["notes"]},
                "deltas": {"from": "old", "to": "copy", "tables": ["notes"], "rows": False},
                "home": {"from": "old", "to": "lake"},
            },
        }
    )


@pytest.fixture
def copy(tmp_path):
    with closing(SqliteAdapter(tmp_path / "copy.db")) as adapter:
        adapter.suspend_table("destinations/shop/copy", "orders", "no permission")
        adapter.suspend_table("flows/notes/copy", "notes", "it has a lock")
        yield adapter


def test_suspended_tables_of_destinations_and_flows_are_listed(config, copy):
    letters, errors = dead_letters_of_gateway("destination", config, None, lambda: None)
    assert [(letter["id"], letter["why"]) for letter in letters] == [
        ("shop/copy!orders", "no permission"),
        ("flows/notes/copy!notes", "it has a lock"),
    ]
    assert errors == []


@pytest.mark.parametrize(
    ("letter_id", "asset", "job", "mark"),
    [
        ("shop/copy!orders", "destinations/shop/copy", "destinations", "destinations/shop/copy"),
        ("flows/notes/copy!notes/g/r1/x", "flows/notes", "flows_notes", "flows/notes/copy"),
    ],
)
def test_the_next_run_of_a_destination_or_flow_retries_a_table(config, copy, letter_id, asset, job, mark):
    assert copy.suspended_tables(mark)[0].retry_ms > 0
    writer = retry_destination(config, letter_id)
    assert (writer.asset, writer.job) == (asset, job)
    assert copy.suspended_tables(mark)[0].retry_ms == 0


def test_a_table_of_an_unknown_flow_cannot_be_retried(config, copy):
    with pytest.raises(NotFoundError, match="flows/other/copy"):
        retry_destination(config, "flows/other/copy!notes")


@pytest.mark.parametrize(
    ("letter_id", "is_destination"),
    [("shop/copy!notes", True), ("shop/copy!notes/g/a/b/", True), ("notes/a!b/text", False)],
)
def test_the_id_of_a_value_in_the_lake_is_not_taken_for_a_destination(letter_id, is_destination):
    assert is_of_destination(letter_id) == is_destination
