"""The example application: two inspectors, one of them offline for a while."""

from __future__ import annotations

import pytest

from examples.inspection import main
from tests.integration.gateway_support import Served, sign


@pytest.fixture
def inspector(served: Served, tmp_path, monkeypatch, capsys):
    """Run a command as an inspector; return its output."""

    def run(name: str, *arguments: str, online: bool = True) -> str:
        monkeypatch.setenv("LAKESYNC_REMOTE_URL", served.url if online else "http://127.0.0.1:9")
        monkeypatch.setenv("LAKESYNC_REMOTE_GATEWAY", "inspections")
        monkeypatch.setenv("LAKESYNC_TOKEN", sign(name, "inspections"))
        main(["--database", str(tmp_path / f"{name}.db"), *arguments])
        return capsys.readouterr().out

    return run


def test_two_inspectors_share_a_list_and_one_works_offline(inspector) -> None:
    inspector("ann", "add", "Bridge 12", "Check the north bearing")
    assert "sent 1" in inspector("ann", "sync")
    inspector("ben", "sync")
    inspector("ben", "done", "1", "--note", "replaced", online=False)
    with pytest.raises(SystemExit, match="no network: 1 changes are kept and sent next time"):
        inspector("ben", "sync", online=False)
    assert inspector("ben", "list", online=False) == "1 done, 1 changes not sent yet\n"
    inspector("ann", "add", "Bridge 12", "Paint the rail")
    inspector("ann", "sync")
    inspector("ben", "sync")
    inspector("ann", "sync")
    expected = "  1  Bridge 12: Paint the rail\n1 done, 0 changes not sent yet\n"
    assert inspector("ann", "list") == inspector("ben", "list") == expected
    assert "ann" in inspector("ben", "history", "1")


def test_the_example_reports_commands_that_fail(inspector) -> None:
    with pytest.raises(SystemExit, match="there is no check 7: the list has 0"):
        inspector("cat", "done", "7")
