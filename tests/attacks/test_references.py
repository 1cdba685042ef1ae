"""A tenant's admin who refers to another tenant's secrets."""

from __future__ import annotations

import pytest

from lakesync import config
from lakesync.connectors.registry import Connectors
from lakesync.connectors.secrets import Secrets
from lakesync.model.errors import ConfigurationError, ValidationError


def jira(reference):
    return {"name": "j", "type": "jira", "jira": {"domain": "acme", "email": "a@b.example", "apiToken": reference}}


@pytest.fixture
def connectors(monkeypatch):
    """Those of a server that nobody configured."""
    monkeypatch.setenv("LAKESYNC_CONFIG", "")
    return Connectors.configured(config.load({}))


@pytest.mark.parametrize(
    ("gateway", "reference"),
    [
        ("shop", "env:CONNECTOR_shop_eu_TOKEN"),
        ("shop", "env:CONNECTOR_shop__TOKEN"),
        ("shop", "env:CONNECTOR_bank_TOKEN"),
        ("shop", "env:CONNECTOR_TOKEN"),
        ("shop", "env:CONNECTOR_shop_"),
        ("shop", "env:LAKESYNC_JWT_SECRET"),
        ("shop", "env:connector_shop_TOKEN"),
        ("shop_eu", "env:CONNECTOR_shop_TOKEN"),
        ("shop_", "env:CONNECTOR_shop_TOKEN"),
    ],
)
def test_a_reference_to_a_possible_secret_of_another_gateway_is_rejected(connectors, gateway, reference):
    with pytest.raises(ValidationError, match="does not allow"):
        connectors.take(gateway, jira(reference))


def test_no_two_gateways_share_a_variable():
    """Every name that one gateway may refer to is refused to every other one."""
    words = ["shop", "eu", "shop_eu", "shop_", "_shop", "shop__eu", "eu_shop", "TOKEN", "_"]
    for pattern in (
        "env:CONNECTOR_{gateway}_*",
        "env:{gateway}_*",
        "env:{gateway}_SECRET_*",
        "env:*_{gateway}",
        "env:*_OF{gateway}_*",
        "env:{gateway}_{gateway}_*",
    ):
        secrets = Secrets((), [pattern])
        names = {pattern.replace("{gateway}", one).replace("*", other) for one in words for other in words}
        for name in names:
            holders = []
            for gateway in words:
                try:
                    secrets.seal(gateway, "c", "s", name)
                except ValidationError:
                    continue
                holders.append(gateway)
            assert len(holders) <= 1, (pattern, name, holders)


@pytest.mark.parametrize(
    "pattern",
    [
        "env:CONNECTOR_{gateway}*",
        "env:{gateway}?*",
        "env:C_{gateway}_[A-Z]",
        "env:C{gateway}_*_*",
        "env:*{gateway}_X",
        "env:C_*{gateway}",
        "file:/run/*/{gateway}/*",
        "file:/run/*{gateway}",
        "file:/run/?{gateway}/*",
        "file:/run/[a-z]{gateway}/*",
        "file:/run/{gateway}{gateway}*",
        "*{gateway}/*",
        "file:/run/{gateway}_*",
        "file:/run/{gateway}*",
    ],
)
def test_a_reference_pattern_that_does_not_separate_gateways_is_rejected(pattern):
    with pytest.raises(ConfigurationError, match="references"):
        Secrets((), [pattern])
