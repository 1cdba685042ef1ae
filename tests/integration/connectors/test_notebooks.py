"""Reading connectors and the log in a notebook, as docs/connectors.md shows; also a user's own connector."""

import re
import sys
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark import cloudpickle

from lakehouse.landing.connector_source import register_connectors
from lakehouse.sessions import session
from lakesync.connectors import ConnectorConfig, ConnectorDescriptor, ConnectorType
from lakesync.connectors.base import Page, SourceRow, Table, Usage
from lakesync.model.schema import Column, TableSchema
from tests.dagster_instance import dagster_instance
from tests.integration.connectors.jira_support import desk
from tests.integration.dagster.poll_support import House

pytestmark = pytest.mark.timeout(900)  # Spark's first queries take a minute on a busy machine

PAGE = (Path(__file__).parents[3] / "docs" / "connectors.md").read_text()
TICKETS = TableSchema("tickets", (Column("title", "string"), Column("votes", "number"), Column("open", "boolean")))
SETTINGS = {"type": "object", "properties": {"token": {"type": "string", "writeOnly": True}}}

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # Spark's processes do not import tests


class Tickets:
    """A source of a user's own connector type."""

    tables = (Table("tickets", schema=lambda: TICKETS), Table("notes"))
    usage = Usage(0)

    def __init__(self, config):
        assert config.settings["token"] == "t0p-s3cret"

    def changes(self, table, _cursor):
        for number in range(3):
            yield Page(table, [SourceRow(f"t{number}", {"title": f"n{number}", "votes": number, "open": None})])

    def close(self):
        pass


DESK = ConnectorType(
    ConnectorDescriptor("desk", "Desk", "Tickets", "api", SETTINGS, {"type": "object"}), open_source=Tickets
)


@pytest.fixture
def house(serve, spark_server):
    with (
        dagster_instance() as instance,
        closing(House(serve(), spark_server["config"], instance, "notebooks")) as house,
    ):
        yield house


def test_the_pages_example_reads_a_connector_and_the_log(house, monkeypatch, capsys):
    (program,) = (each for each in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL) if "register_sources" in each)
    monkeypatch.setattr("lakesync.config.load", lambda: house.config)
    with desk() as made:
        made.site.add_project("SUP")
        issues = [made.site.add_issue("SUP", f"title {number}") for number in range(3)]
        made.clock.advance(200_000)
        house.register(replace(made.config(), name="support-desk"))
        house.edit("todos", "t1", title="written by a client")
        exec(program, {})  # noqa: S102 what the page shows is what is tested
    shown = capsys.readouterr().out
    assert all(issue.fields["summary"] in shown for issue in issues)
    assert "todos" in shown


def test_a_users_own_connector_is_a_data_source(spark_server, capsys):
    config = ConnectorConfig("gw", "mine", "desk", {"token": "t0p-s3cret"})
    with session(spark_server["config"]) as spark:
        register_connectors(spark, DESK, [config])
        tickets = spark.read.format("lakesync_desk").option("connector", "mine").load("tickets")
        assert tickets.schema.simpleString() == "struct<row_id:string,title:string,votes:double,open:boolean>"
        assert [tuple(row) for row in tickets.orderBy("row_id").collect()][1] == ("t1", "n1", 1.0, None)
        notes = spark.read.format("lakesync_desk").option("connector", "mine").load("notes")
        assert notes.columns == ["row_id", "columns"]
        assert notes.where("get_json_object(columns, '$.votes') > 0").count() == 2
        tickets.explain(extended=True)
        assert "t0p-s3cret" not in capsys.readouterr().out
        with pytest.raises(Exception, match="has no table 'nothing': it has tickets, notes"):
            spark.read.format("lakesync_desk").option("connector", "mine").load("nothing").collect()
