"""What the commands ask Dagster is what this Dagster answers."""

from __future__ import annotations

import pytest
from dagster_graphql.schema import create_schema
from graphql import parse, validate

from lakesync.cli import pipeline


@pytest.fixture(scope="module")
def schema():
    return create_schema().graphql_schema


@pytest.mark.parametrize("name", ["RUNS", "ASSETS", "DAYS", "BACKFILL", "BACKFILL_STATUS", "LAUNCH"])
def test_the_query_fits_the_installed_dagster(schema, name):
    assert validate(schema, parse(getattr(pipeline, name))) == []


def test_the_states_in_which_a_backfill_has_ended_are_there(schema):
    known = set(schema.type_map["BulkActionStatus"].values)
    assert known >= pipeline.ENDED >= pipeline.GOOD


def test_a_backfill_without_a_dagster_says_how_to_name_one(run):
    told = run("backfill", "tables/todos", "--from", "2026-11-01")
    assert told.exit_code == 2
    assert "--dagster-url" in told.stderr
    gone = run("backfill", "--dagster-url", "http://127.0.0.1:1")
    assert gone.exit_code == 3
