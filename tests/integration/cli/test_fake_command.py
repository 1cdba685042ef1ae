"""`lakesync fake`: a vendor's API in a separate process, called by the connector that it prints."""

from __future__ import annotations

import json
import signal
import subprocess
import sys

import pytest

from lakesync.connectors.base import ConnectorConfig, probes_of
from lakesync.connectors.built_in import BUILT_IN
from lakesync.connectors.host_policy import HostPolicy
from lakesync.testing.landing import MemoryLanding, poll


@pytest.mark.parametrize(
    ("kind", "option", "table"), [("jira", "--issues", "jira_issues"), ("salesforce", "--accounts", "sf_accounts")]
)
def test_the_printed_connector_can_be_polled(kind, option, table):
    command = [sys.executable, "-c", "from lakesync.cli import main; main()", "fake", kind, option, "7", "--json"]
    command += ["--calls", "321", "--skew", "-600"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        # all of the output, so that the pipe never blocks the process
        connector = json.loads(process.stdout.read())["connector"]
        assert connector["ingest"]["intervalMs"] > 0
        config = ConnectorConfig("gw", connector["name"], kind, connector[kind], hosts=HostPolicy(("127.0.0.1",)))
        source = next(each for each in BUILT_IN if each.descriptor.type == kind).open_source(config)
        landing = MemoryLanding(source.tables)
        assert poll(source, landing).error is None
        assert len(landing.rows[table]) == 7
        assert source.usage.limit == 321
        clock = next(each for each in probes_of(source) if each.name == "clock")
        assert "behind this machine's" in clock.run()
        source.close()
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0
