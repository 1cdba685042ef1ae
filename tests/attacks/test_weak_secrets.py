"""Weak secrets are rejected if other machines can reach the gateway, and cause a warning on loopback."""

from __future__ import annotations

import pytest
from structlog.testing import capture_logs

from gateway.bind_policy import check_bind_address
from gateway.settings import GatewaySettings
from lakesync import config
from lakesync.model.errors import ConfigurationError

GOOD = "x" * 32
NAMES = ["jwt_secret", "jwt_secret_previous", "service_token", "metrics_token"]
WEAK = ["", " " * 40, "short", "x" * 31 + " " * 10]


@pytest.fixture
def settings(monkeypatch):
    monkeypatch.setenv("LAKESYNC_CONFIG", "")

    def of(host, **secrets):
        return GatewaySettings.of(config.load({"jwt_secret": GOOD, **secrets, "gateway": {"host": host}}))

    return of


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("weak", WEAK)
@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "::ffff:192.0.2.1", "gateway.example"])
def test_a_weak_secret_is_rejected_off_loopback(settings, name, weak, host):
    with pytest.raises(ConfigurationError, match=f"LAKESYNC_{name.upper()} .*32 bytes"):
        check_bind_address(settings(host, **{name: weak}))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1", "::ffff:127.0.0.1"])
def test_a_weak_secret_on_loopback_is_warned_about_without_its_value(settings, name, host):
    with capture_logs() as lines:
        check_bind_address(settings(host, **{name: "guess me"}))
    (line,) = lines
    assert line["log_level"] == "warning"
    assert f"LAKESYNC_{name.upper()}" in line["reason"]
    assert "guess me" not in str(line)


def test_a_strong_secret_is_accepted_on_every_address(settings):
    with capture_logs() as lines:
        check_bind_address(settings("0.0.0.0", **dict.fromkeys(NAMES, GOOD)))
    assert lines == []


def test_a_blank_secret_counts_as_unset(settings):
    found = settings("127.0.0.1", **dict.fromkeys(NAMES, "   "))
    assert (found.secrets, found.service_token, found.metrics_token) == ((), None, None)
