"""The wheel without a checkout: each way to install it is tested in a new environment."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import requests

from lakesync.cli.up.process import Process, free_ports
from tests.e2e.up_support import Up

ROOT = Path(__file__).parents[2]
UV = ROOT / ".venv" / "bin" / "uv"


class Installed:
    """An environment into which the wheel was installed, with or without an extra."""

    def __init__(self, folder, dist, extra="", lock=None):
        """Args: lock: a lock file of packages that are installed before the wheel, and satisfy its requirements."""
        self.folder = folder
        self.bin = folder / "venv" / "bin"
        subprocess.run([UV, "venv", "--quiet", "--python", sys.executable, folder / "venv"], check=True)
        [wheel] = dist.glob("*.whl")
        if lock is not None:
            self.uv("sync", "--require-hashes", lock)
        offline = () if lock is None else ("--offline",)
        self.uv("install", *offline, "--constraint", dist / "constraints.txt", f"{wheel}{extra}")

    def uv(self, command, *words):
        environment = {**os.environ, "VIRTUAL_ENV": str(self.folder / "venv")}
        subprocess.run([UV, "pip", command, "--quiet", *words], env=environment, check=True)

    def run(self, *words, code=0, **variables):
        """Run a program of the environment in its folder; return its output."""
        clean = {name: value for name, value in os.environ.items() if not name.startswith(("LAKESYNC_", "PYTHONPATH"))}
        done = subprocess.run(
            [self.bin / words[0], *words[1:]],
            cwd=self.folder,
            env={**clean, **variables},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == code, f"{words}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout + done.stderr

    def imported_from(self, package):
        """The folder from which the environment's Python imports a package."""
        return Path(self.run("python", "-c", f"import {package}; print({package}.__file__)").strip())


def app_of_the_readme(place, url, token):
    """Run the README's app in an environment; return its output."""
    code = re.search(r"`app\.py`.*?```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)[1]
    (place.folder / "app.py").write_text(code.replace("http://127.0.0.1:8787", url))
    return place.run("python", "app.py", LAKESYNC_TOKEN=token)


def answers(url):
    try:
        return requests.get(url, timeout=2).ok
    except requests.RequestException:
        return False


@pytest.fixture(scope="module")
def dist(tmp_path_factory):
    """The distribution files that `scripts/build` made of this checkout."""
    folder = tmp_path_factory.mktemp("dist")
    subprocess.run([ROOT / "scripts" / "build", folder], check=True, capture_output=True)
    return folder


@pytest.mark.deep
@pytest.mark.timeout(900)
def test_the_platform_takes_a_row_to_the_lake_from_an_empty_folder(tmp_path, dist):
    place = Installed(tmp_path, dist, "[platform]", lock=ROOT / "requirements" / "platform.lock")
    assert place.imported_from("lakesync_dagster").is_relative_to(tmp_path)
    place.run("lakesync", "init", "--gateway", "shop")
    up = Up(tmp_path / "lakesync-data", command=[str(place.bin / "lakesync")])
    up.config = str(tmp_path / "lakesync.toml")
    try:
        url = up.start().report()["gateway"]["url"]
        token = up.ask("token", "create", "--client", "alice").strip()
        assert app_of_the_readme(place, url, token) == "[{'title': 'Buy oat milk', 'owner': 'alice'}]\n"
        up.ask("flush")
        [row] = up.ask("query", "SELECT title, owner FROM todos", "--json").splitlines()
        assert json.loads(row) == {"title": "Buy oat milk", "owner": "alice"}
        assert up.failed_ticks() == []
        up.process.terminate()
        assert up.process.wait(240) == 0, up.log()
    finally:
        up.end()


@pytest.mark.deep
@pytest.mark.timeout(300)
def test_the_server_runs_a_gateway_without_java(tmp_path, dist):
    place = Installed(tmp_path, dist, "[server]")
    assert "pip install 'lakesync[platform]'" in place.run("lakesync", "up", code=1)
    (port,) = free_ports(1)
    url = f"http://127.0.0.1:{port}"
    secret = {"LAKESYNC_JWT_SECRET": "0123456789abcdef" * 4}
    environment = {**secret, "LAKESYNC_CONFIG": "", "LAKESYNC_DATA_DIR": str(tmp_path / "data"), "PATH": str(place.bin)}
    command = [str(place.bin / "lakesync"), "gateway", "--port", str(port)]
    gateway = Process("gateway", command, environment, tmp_path / "log")
    try:
        gateway.wait_ready(lambda: answers(f"{url}/ready"), timeout=240)
        token = place.run("lakesync", "token", "create", "--gateway", "shop", "--client", "alice", **secret).strip()
        assert app_of_the_readme(place, url, token) == "[{'title': 'Buy oat milk', 'owner': 'alice'}]\n"
    finally:
        gateway.stop(grace=60)
    assert gateway.exit_code == 0, gateway.last_lines()


@pytest.mark.deep
def test_the_client_without_extras_imports_no_server(tmp_path, dist):
    place = Installed(tmp_path, dist)
    place.run("python", "-c", "import lakesync; lakesync.open")
    assert "pip install 'lakesync[server]'" in place.run("lakesync", "gateway", code=1)
    assert "lakesync[platform]" in place.run("lakesync", "doctor")
