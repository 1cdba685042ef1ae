"""Secrets of connectors: a sealed secret opens only for its gateway, connector and setting."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakesync.connectors.secrets import Secrets
from lakesync.model.errors import ConfigurationError, ValidationError

OLD, NEW = "o" * 32, "n" * 64


@given(st.text(st.characters(exclude_categories=["Cs"])).filter(lambda text: not text.startswith(("env:", "file:"))))
def test_a_sealed_secret_does_not_contain_the_plain_text(text):
    secrets = Secrets([OLD])
    kept = secrets.seal("g", "c", "s", text)
    assert secrets.reveal("g", "c", "s", kept) == text
    assert kept != secrets.seal("g", "c", "s", text)
    assert len(text) < 6 or text not in str(kept)


@pytest.mark.parametrize("place", [("h", "c", "s"), ("g", "d", "s"), ("g", "c", "t")])
def test_a_sealed_secret_opens_only_for_its_gateway_connector_and_setting(place):
    secrets = Secrets([OLD])
    with pytest.raises(ConfigurationError, match="sealed for another gateway"):
        secrets.reveal(*place, secrets.seal("g", "c", "s", "x"))  # type: ignore[call-arg]


def test_a_modified_sealed_secret_is_rejected():
    secrets = Secrets([OLD])
    token = secrets.seal("g", "c", "s", "x")["sealed"]
    for place in (10, len(token) // 2, len(token) - 5):
        other = "A" if token[place] != "A" else "B"
        with pytest.raises(ConfigurationError, match="another key"):
            secrets.reveal("g", "c", "s", {"sealed": token[:place] + other + token[place + 1 :]})


def test_secret_keys_can_be_rotated():
    kept = Secrets([OLD]).seal("g", "c", "s", "x")
    between = Secrets([NEW, OLD])
    assert between.has_older_key
    assert between.reveal("g", "c", "s", kept) == "x"
    anew = between.reseal(kept)
    assert anew != kept
    assert between.reseal(anew) is anew
    assert Secrets([NEW]).reveal("g", "c", "s", anew) == "x"
    with pytest.raises(ConfigurationError, match="another key"):
        Secrets([NEW]).reveal("g", "c", "s", kept)
    assert not Secrets([NEW]).has_older_key


def test_a_secret_that_no_key_opens_is_left_unchanged():
    kept = Secrets(["x" * 32]).seal("g", "c", "s", "x")
    assert Secrets([NEW, OLD]).reseal(kept) is kept
    assert Secrets([NEW, OLD]).reseal("env:CONNECTOR_X") == "env:CONNECTOR_X"
    with pytest.raises(ConfigurationError, match="LAKESYNC_SECRET_KEY"):
        Secrets().reveal("g", "c", "s", kept)


def test_without_a_key_a_literal_secret_is_rejected_and_not_shown():
    with pytest.raises(ValidationError, match="no key to seal it") as refused:
        Secrets().seal("g", "desk", "apiToken", "s3cret")
    assert "s3cret" not in str(refused.value)


def test_a_short_key_is_rejected_and_not_shown():
    with pytest.raises(ConfigurationError, match="fewer than 32") as refused:
        Secrets(["hunter2"])
    assert "hunter2" not in str(refused.value)


@pytest.mark.parametrize(
    "reference",
    [
        "env:LAKESYNC_JWT_SECRET",
        "env:connector_x",
        "env:CONNECTOR_h_X",
        "file:/run/secrets/../../etc/shadow",
        "file:/run/secrets//x",
        "file:/run/secrets/./x",
        "file:run/secrets/x",
        "file:/etc/shadow",
        "file:",
        "env:",
    ],
)
def test_a_forbidden_reference_is_rejected_on_registration_and_on_use(reference):
    secrets = Secrets([OLD], ["env:CONNECTOR_{gateway}_*", "file:/run/secrets/*"])
    with pytest.raises(ValidationError, match="does not allow"):
        secrets.seal("g", "c", "s", reference)
    with pytest.raises(ConfigurationError, match="does not allow"):
        secrets.reveal("g", "c", "s", reference)


def test_references_are_resolved(tmp_path, monkeypatch):
    secrets = Secrets((), [f"file:{tmp_path}/*", "env:CONNECTOR_{gateway}_*"])
    (tmp_path / "token").write_text("from a file\n")
    monkeypatch.setenv("CONNECTOR_g_X", "from the environment")
    found = [
        secrets.reveal("g", "c", "s", secrets.seal("g", "c", "s", each))
        for each in (f"file:{tmp_path}/token", "env:CONNECTOR_g_X")
    ]
    assert found == ["from a file", "from the environment"]
    with pytest.raises(ConfigurationError, match="No such file"):
        secrets.reveal("g", "c", "s", f"file:{tmp_path}/gone")
