"""docs/login/backend.md: each backend of the page runs, and the gateway accepts its token."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import jwt
import pytest
import requests

from lakesync.auth import TokenVerifier, configured_issuers
from lakesync.config import load
from tests.integration.gateway_support import DEADLINE, until

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "login" / "backend.md").read_text()
SERVERS = ROOT / ".venv-servers" / "bin" / "python"
FILES = {
    name: code
    for code in re.findall(r"```(?:python|js)\n(.*?)```", PAGE, re.DOTALL)
    for name in re.findall(r"\A(?:#|//) (\S+)\n", code)
}
USERS = """
class User:
    id = "alice"
    team = "red"

def current_user() -> User:
    return User()
"""
FASTAPI = "from app_fastapi import app; from starlette.testclient import TestClient; answer = TestClient(app).get(URL)"
FLASK = "from app_flask import app; answer = app.test_client().get(URL)"
DJANGO = """
import django
from django.conf import settings
database = {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}
settings.configure(
    SECRET_KEY="s", ROOT_URLCONF="views", DATABASES={"default": database}, ALLOWED_HOSTS=["*"],
    INSTALLED_APPS=["django.contrib.contenttypes", "django.contrib.auth", "django.contrib.sessions"],
    MIDDLEWARE=[
        "django.contrib.sessions.middleware.SessionMiddleware",
        "django.contrib.auth.middleware.AuthenticationMiddleware",
    ],
)
django.setup()
from django.contrib.auth.models import Group, User
from django.core.management import call_command
from django.test import Client
call_command("migrate", verbosity=0)
user = User.objects.create_user("alice")
user.groups.add(Group.objects.create(name="red"))
client = Client()
assert client.get(URL).status_code == 302
client.force_login(user)
answer = client.get(URL)
"""


def make_keys(folder):
    """Make a key pair in a folder with the page's commands."""
    for line in re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)[0].splitlines():
        subprocess.run(line.partition("#")[0].split(), cwd=folder, check=True, capture_output=True)


@pytest.fixture
def folder(tmp_path):
    """The files of the page, and a key pair made with its commands."""
    for name, code in FILES.items():
        (tmp_path / name).write_text(code)
    (tmp_path / "myapp").mkdir()
    (tmp_path / "myapp" / "users.py").write_text(USERS)
    (tmp_path / "users.mjs").write_text('export const currentUser = () => ({ id: "alice", team: "red" });\n')
    make_keys(tmp_path)
    (tmp_path / "rules.json").write_text('{"version": 1, "buckets": []}')
    (tmp_path / "lakesync.toml").write_text(re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)[0])
    return tmp_path


def taken(folder, monkeypatch, token):
    """Return the answer of a gateway with the page's settings to a token."""
    monkeypatch.setenv("LAKESYNC_CONFIG", str(folder / "lakesync.toml"))
    config = load()
    verifier = TokenVerifier(issuers=configured_issuers(config), sole_gateway=config.sole_gateway)
    assert [finding for finding in verifier.findings(token) if finding.state != "ok"] == []
    found = verifier.verify(token)
    assert (found.gateways, found.role) == (("shop",), "client")
    assert 0 < found.expires - time.time() <= 900
    return found


@pytest.mark.parametrize(
    ("python", "code", "client"),
    [(sys.executable, FASTAPI, "alice"), (SERVERS, FLASK, "alice"), (SERVERS, DJANGO, "1")],
    ids=["FastAPI", "Flask", "Django"],
)
def test_a_backend_in_python_makes_tokens(folder, monkeypatch, python, code, client):
    last = "\nimport json; print(json.dumps([json.loads(answer.text if hasattr(answer, 'text') else answer.content), "
    program = "URL = '/lakesync-token'\n" + code + last + "answer.headers['Cache-Control']]))"
    process = subprocess.run(
        [python, "-W", "ignore", "-c", program],
        cwd=folder,
        env={**os.environ, "LAKESYNC_PRIVATE_KEY": "private.pem", "PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
        timeout=DEADLINE,
        check=False,
    )
    assert process.returncode == 0, process.stderr
    body, caching = json.loads(process.stdout)
    found = taken(folder, monkeypatch, body["token"])
    assert found.client_id == client
    assert (found.claims.get("team"), found.claims.get("groups")) in (("red", None), (None, ["red"]))
    assert "no-store" in caching


def test_a_backend_in_node_makes_tokens_and_the_app_fetches_them(folder, monkeypatch):
    if (node := shutil.which("node")) is None:
        pytest.skip("Node.js is not installed; scripts/install --dev installs it where apt-get is permitted")
    (folder / "print.mjs").write_text(
        'import { server } from "./server.mjs";\nserver.on("listening", () => console.log(server.address().port));\n'
    )
    with subprocess.Popen(
        [node, "print.mjs"],
        cwd=folder,
        env={**os.environ, "LAKESYNC_PRIVATE_KEY": "private.pem", "PORT": "0"},
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            monkeypatch.setenv("LOGIN_URL", f"http://127.0.0.1:{int(process.stdout.readline())}")
            names = {}
            exec(re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)[-1], names)  # noqa: S102 the page's own example
            found = taken(folder, monkeypatch, names["fetch_token"]())
        finally:
            process.kill()
    assert (found.client_id, found.claims["team"]) == ("alice", "red")


def test_a_new_key_in_the_file_is_accepted_without_a_restart(folder, spawn, tmp_path_factory):
    served = spawn(LAKESYNC_CONFIG=str(folder / "lakesync.toml"))
    claims = {"iss": "https://app.example.com", "aud": "lakesync", "sub": "alice", "exp": int(time.time()) + 60}
    first = (folder / "private.pem").read_text()

    def status(key):
        token = jwt.encode(claims, key, "EdDSA")
        headers = {"Authorization": f"Bearer {token}"}
        return requests.get(f"{served.url}/sync/shop/metrics", headers=headers, timeout=DEADLINE).status_code

    assert status(first) == 200
    make_keys(new := tmp_path_factory.mktemp("new"))  # the gateway reads `folder` again every second
    second = (new / "private.pem").read_text()
    assert status(second) == 401
    with (folder / "public.pem").open("a") as file:
        file.write((new / "public.pem").read_text())
    until(lambda: status(second) == 200, "the file to be read again")
    assert status(first) == 200
