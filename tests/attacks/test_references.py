"""A tenant's admin refers to the secrets of another tenant."""

from __future__ import annotations

import contextlib
import itertools
import re

import pytest

from lakesync import config
from lakesync.connectors.registry import Connectors
from lakesync.connectors.secrets import Secrets
from lakesync.model.errors import ConfigurationError, ValidationError


def jira(reference):
    return {"name": "j", "type": "jira", "jira": {"domain": "acme", "email": "a@b.example", "apiToken": reference}}


@pytest.fixture
def connectors(monkeypatch):
    """The connectors of a server without a reference pattern."""
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
        connectors.seal(gateway, jira(reference))


def test_no_two_gateways_share_a_variable():
    """A name that one gateway may refer to is rejected for every other gateway."""
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


WORDS = ("shop", "eu", "shop_eu", "eu_shop", "shop_TOKEN", "TOKEN", "X_shop")
OF_VARIABLES = ("A_{gateway}", "A_{gateway}_*", "A_{gateway}_TOKEN", "A_X_{gateway}", "A_*_{gateway}", "B_{gateway}_*")
OF_FILES = ("/a/{gateway}/*", "/a/{gateway}", "/a/shop/{gateway}/*", "/a/{gateway}/eu/*", "/b/{gateway}/*")


@pytest.mark.parametrize(
    ("kind", "one", "other"),
    [
        (kind, *pair)
        for kind, patterns in (("env", OF_VARIABLES), ("file", OF_FILES))
        for pair in itertools.combinations(patterns, 2)
    ],
)
def test_two_patterns_share_no_secret_or_are_rejected(kind, one, other):
    pair = (f"{kind}:{one}", f"{kind}:{other}")
    with contextlib.suppress(ConfigurationError):
        Secrets((), pair)
        owners = [{name: gateway for gateway in WORDS for name in names(each, gateway)} for each in pair]
        shared = owners[0].keys() & owners[1].keys()
        assert all(owners[0][name] == owners[1][name] for name in shared)


def names(pattern, gateway):
    """Yield references of a gateway that a pattern allows."""
    return [pattern.replace("{gateway}", gateway).replace("*", word) for word in WORDS if "_" not in word]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("env:A_{gateway}", "env:A_{gateway}_*"),
        ("env:A_{gateway}_*", "env:A_{gateway}_SECRET_*"),
        ("env:A_{gateway}", "env:A_X_{gateway}"),
        ("file:/a/{gateway}/*", "file:/a/shop/{gateway}/*"),
    ],
)
def test_patterns_that_give_one_secret_to_two_gateways_are_rejected(one, other):
    for pair in ((one, other), (other, one)):
        with pytest.raises(ConfigurationError, match=re.escape(f"{pair[0]!r} and {pair[1]!r}, by which one secret")):
            Secrets((), pair)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("env:A_{gateway}_*", "env:B_{gateway}_*"),
        ("env:A_{gateway}_*", "env:A_{gateway}_TOKEN"),
        ("env:A_{gateway}_KEY", "env:A_{gateway}_FILE_PATH"),
        ("env:A_{gateway}_*", "env:A_{gateway}_*"),
        ("env:A_{gateway}_*", "env:A_SHARED"),
        ("env:A_{gateway}_*", "file:/run/{gateway}/*"),
        ("file:/run/{gateway}/*", "file:/run/{gateway}/key"),
        ("env:A_{gateway}_*", "google:{gateway}"),
    ],
)
def test_patterns_that_separate_gateways_are_accepted_together(one, other):
    assert Secrets((), (one, other))
