"""A real `lakesync up` in a separate folder."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time

import psutil
import requests

from lakesync.cli.up.services import MARKER

READY_SECONDS = 240
_TICKS = """{
  repositoriesOrError {
    ... on RepositoryConnection {
      nodes { sensors { name sensorState { ticks { timestamp error { message } } } } }
    }
  }
}"""
COMMAND = [sys.executable, "-c", "from lakesync.cli import main; main()"]


class Up:
    """A running `lakesync up`."""

    def __init__(self, folder, settings=None, command=COMMAND, words=("up", "--port", "0")):
        """Args: settings: `lakesync.toml`; command: the `lakesync` of another environment; words: its arguments."""
        self.folder = folder
        self.command = command
        self.words = words
        self.config = ""
        if settings is not None:
            folder.parent.mkdir(parents=True, exist_ok=True)
            (folder.parent / "lakesync.toml").write_text(settings)
            self.config = str(folder.parent / "lakesync.toml")
        self.process = None

    def start(self):
        clean = {name: value for name, value in os.environ.items() if not name.startswith("LAKESYNC_")}
        with (self.folder.parent / "up.log").open("ab") as log:
            self.process = subprocess.Popen(
                # as a shell does for background jobs
                [
                    "sh",
                    "-c",
                    'trap "" INT; exec "$@"',
                    "sh",
                    *self.command,
                    *self.words,
                    "--data",
                    str(self.folder),
                    "--dagster-port",
                    "0",
                    "--json",
                ],
                env={**clean, "LAKESYNC_CONFIG": self.config},
                cwd=self.folder.parent,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        self.wait(lambda: self.report().get("ready") and self.report()["pid"] == self.process.pid, READY_SECONDS)
        return self

    def report(self):
        try:
            return json.loads((self.folder / "up.json").read_text())
        except FileNotFoundError:
            return {}

    def wait(self, condition, seconds=60):
        deadline = time.monotonic() + seconds
        while not condition():
            assert self.process.poll() is None, self.log()
            assert time.monotonic() < deadline, self.log()
            time.sleep(0.1)

    def log(self):
        return (self.folder.parent / "up.log").read_text()[-4000:]

    def restarted(self, name):
        """Kill a process; wait until another one has replaced it and all services are ready again."""
        before = self.report()[name]["pid"]
        os.kill(before, signal.SIGKILL)
        self.wait(lambda: self.report()[name]["pid"] not in (None, before) and self.report()["ready"], READY_SECONDS)

    def ask(self, *words, code=0):
        """Run a `lakesync` command on the folder; return its stdout."""
        clean = {name: value for name, value in os.environ.items() if not name.startswith("LAKESYNC_")}
        done = subprocess.run(
            [*self.command, *words, "--data", str(self.folder)],
            env={**clean, "LAKESYNC_CONFIG": self.config},
            cwd=self.folder.parent,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == code, f"{words}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def failed_ticks(self):
        """The errors of each sensor's failed ticks."""
        ticks = self.ticks()
        assert any(ticks.values()), "no sensor has ticked"
        return [(name, each["error"]["message"]) for name, found in ticks.items() for each in found if each["error"]]

    def ticks(self):
        """The ticks that Dagster lists for each sensor."""
        answer = requests.post(f"{self.report()['dagster']['url']}/graphql", json={"query": _TICKS}, timeout=60).json()
        sensors = [sensor for node in answer["data"]["repositoriesOrError"]["nodes"] for sensor in node["sensors"]]
        return {sensor["name"]: sensor["sensorState"]["ticks"] for sensor in sensors}

    def end(self):
        """Stop it and every process that it started."""
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        for process in self.family():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()

    def family(self):
        """Every process that uses the folder."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error, OSError):
                if process.environ().get(MARKER) == str(self.folder):
                    found.append(process)
        return found
