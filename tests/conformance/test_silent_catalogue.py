"""A REST catalogue that takes connections and never answers: opening the lake fails in a bounded time."""

from __future__ import annotations

import pytest

from lakesync.adapters import open_adapter
from lakesync.analysis.catalogue import open_catalogue
from lakesync.config import load
from lakesync.model.errors import ConfigurationError, LakeUnavailableError
from lakesync.wire import compat_pyiceberg
from tests.mute_server import mute_server

pytestmark = pytest.mark.timeout(60)


@pytest.fixture
def silent(monkeypatch):
    """The address of a silent catalogue, which is given up after a second."""
    monkeypatch.setattr(compat_pyiceberg, "RESPONSE_SECONDS", 1.0)
    with mute_server() as server:
        yield f"http://127.0.0.1:{server.port}"


@pytest.mark.parametrize("settings", [{}, {"spark.sql.catalog.lake.credential": "user:secret"}])
def test_a_silent_rest_catalogue_is_given_up(silent, settings, tmp_path):
    config = load({"data_dir": tmp_path, "lake": {"catalog_uri": silent}, "spark": {"settings": settings}})
    with pytest.raises(LakeUnavailableError, match="there is no Iceberg catalogue at"):
        open_catalogue(config)


def test_an_adapter_gives_up_a_silent_rest_catalogue(silent):
    with pytest.raises(ConfigurationError, match="timed out"):
        open_adapter(f"iceberg://lakesync?uri={silent}&warehouse=w")
