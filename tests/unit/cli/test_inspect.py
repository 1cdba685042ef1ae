"""`lakesync token inspect` makes every check of a gateway, with the settings of this project."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lakesync.cli.exit_codes import ExitCode
from lakesync.testing.servers.oidc import serve_oidc

SECRET = "a secret that has thirty-two bytes, or more"


@pytest.fixture(scope="module")
def provider():
    with serve_oidc("supabase") as found:
        yield found


@pytest.fixture
def project(provider, monkeypatch):
    """Settings of one gateway that trusts the provider."""
    Path("lakesync.toml").write_text(
        f'[gateways.shop]\n[[gateway.issuers]]\nissuer = "{provider.issuer}"\naudience = "authenticated"\n'
        'gateway_claim = "app_metadata.gateways"\nrole_claim = "app_metadata.role"\n'
    )
    monkeypatch.setenv("LAKESYNC_CONFIG", "lakesync.toml")
    return provider


def states(result):
    return {each["check"]: each["state"] for each in json.loads(result.stdout)["checks"]}


def test_an_accepted_token_is_explained(run, project):
    user = project.add_user("alice@example.com", gateways=["shop", "desk"], team="red")
    token = project.token(user)
    result = run("token", "inspect", token)
    assert result.exit_code == ExitCode.OK, result.output
    assert f"accepts the token as client {user.id!r} of shop, desk" in result.stderr
    found = json.loads(run("token", "inspect", "--json", "-g", "desk", stdin=token).stdout)
    assert (found["accepted"], found["client"], found["gateways"]) == (True, user.id, ["shop", "desk"])
    assert found["claims"]["app_metadata.team"] == "red"
    assert {each["state"] for each in found["checks"]} == {"ok"}


def test_every_failed_check_is_listed(run, project):
    user = project.add_user("bob@example.com", gateways=["shop"])
    token = project.token(user, aud="other", exp=1)
    result = run("token", "inspect", token, "--json")
    assert result.exit_code == ExitCode.AUTH
    found = states(result)
    assert {name for name, state in found.items() if state == "failed"} == {"audience", "exp"}
    shown = run("token", "inspect", token)
    assert "its aud is 'other'; it must be 'authenticated'" in shown.stdout
    assert "rejects the token" in shown.stderr


def test_access_to_a_gateway_is_a_separate_check(run, project):
    token = project.token(project.add_user("carol@example.com", gateways=["shop"], role="editor"))
    result = run("token", "inspect", token, "--json", "--gateway", "desk", "--role", "admin")
    assert result.exit_code == ExitCode.AUTH
    assert (states(result)["enter"], states(result)["admin"], states(result)["gateway"]) == ("failed", "failed", "ok")


def test_an_unreachable_provider_is_reported(run, project):
    token = project.token(project.add_user("dave@example.com", gateways=["shop"]))
    project.down = True
    try:
        result = run("token", "inspect", token, "--json")
    finally:
        project.down = False
    assert result.exit_code == ExitCode.AUTH
    assert "status 503" in result.stderr
    assert (states(result)["key"], states(result)["signature"], states(result)["exp"]) == ("failed", "skipped", "ok")


def test_tokens_in_files_and_tokens_of_the_server_are_inspected(run, monkeypatch):
    monkeypatch.setenv("LAKESYNC_JWT_SECRET", SECRET)
    Path("token.txt").write_text(run("token", "create", "-g", "shop", "-c", "ann", "--role", "admin").stdout)
    result = run("token", "inspect", "token.txt", "--role", "admin", "-g", "shop")
    assert result.exit_code == ExitCode.OK, result.output
    assert SECRET not in result.output
    monkeypatch.setenv("LAKESYNC_JWT_SECRET", SECRET[::-1])
    assert run("token", "inspect", "token.txt").exit_code == ExitCode.AUTH
    monkeypatch.setenv("LAKESYNC_JWT_SECRET_PREVIOUS", SECRET)
    assert run("token", "inspect", "token.txt").exit_code == ExitCode.OK


def test_text_that_is_not_a_token_is_reported(run, monkeypatch):
    monkeypatch.setenv("LAKESYNC_JWT_SECRET", SECRET)
    result = run("token", "inspect", "--json", stdin="sesame")
    assert (result.exit_code, states(result)["form"], states(result)["signature"]) == (
        ExitCode.AUTH,
        "failed",
        "skipped",
    )
    assert run("token", "inspect", "nowhere.txt").exit_code == ExitCode.USAGE


def test_settings_without_secret_and_issuers_require_no_token(run):
    result = run("token", "inspect", "a.b.c")
    assert result.exit_code == ExitCode.USAGE
    assert "requires no token" in result.stderr


def test_the_doctor_fetches_the_keys(run, project):
    result = json.loads(run("doctor", "--only", "issuers", "--json").stdout)
    assert (result["state"], result["found"]) == ("ok", "1 with 1 key")
    assert json.loads(run("doctor", "--only", "secret", "--json").stdout)["state"] == "ok"
    project.down = True
    try:
        result = json.loads(run("doctor", "--only", "issuers", "--json").stdout)
    finally:
        project.down = False
    assert (result["state"], "503" in result["found"]) == ("problem", True)
