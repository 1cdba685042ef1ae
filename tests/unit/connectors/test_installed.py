"""Connector types of installed packages, found by their entry points."""

from __future__ import annotations

import pytest

from lakesync import config
from lakesync.connectors import Connectors
from lakesync.model.errors import ConfigurationError

MODULE = """
from lakesync.connectors import ConnectorDescriptor, ConnectorType

CONNECTOR = ConnectorType(ConnectorDescriptor("fax", "Fax", "", "api", {"type": "object"}, {"type": "object"}))
NO_CONNECTOR = "fax"
"""


@pytest.fixture
def package(tmp_path, monkeypatch):
    """Installs a package with one entry point."""
    monkeypatch.setenv("LAKESYNC_CONFIG", "")

    def install(entry: str) -> None:
        metadata = tmp_path / "lakesync_fax-1.0.dist-info"
        metadata.mkdir()
        (tmp_path / "lakesync_fax.py").write_text(MODULE)
        (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: lakesync-fax\nVersion: 1.0\n")
        (metadata / "entry_points.txt").write_text(f"[lakesync.connectors]\n{entry}\n")
        monkeypatch.syspath_prepend(tmp_path)

    return install


def test_an_installed_connector_type_is_listed(package, tmp_path):
    package("fax = lakesync_fax:CONNECTOR")
    connectors = Connectors.configured(config.load({"data_dir": tmp_path}))
    assert [each.type for each in connectors.descriptors()][:3] == ["bigquery", "fax", "jira"]
    assert connectors.seal("g", {"name": "f", "type": "fax", "fax": {"no": 1}}).settings == {"no": 1}


@pytest.mark.parametrize(
    "entry",
    [
        "fax = lakesync_fax:GONE",
        "fax = no_such_module:X",
        "fax = lakesync_fax:NO_CONNECTOR",
        "tel = lakesync_fax:CONNECTOR",
    ],
)
def test_a_broken_connector_package_fails_the_start_with_its_name(package, tmp_path, entry):
    package(entry)
    name, _, place = entry.partition(" = ")
    with pytest.raises(ConfigurationError, match=rf"'{name}' \({place}\)"):
        Connectors.configured(config.load({"data_dir": tmp_path}))


def test_a_short_secret_key_fails_the_start(tmp_path, monkeypatch):
    monkeypatch.setenv("LAKESYNC_CONFIG", "")
    with pytest.raises(ConfigurationError, match="secret_key has fewer than 32"):
        Connectors.configured(config.load({"data_dir": tmp_path, "secret_key": "short"}))
