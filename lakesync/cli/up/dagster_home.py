"""Writes the files that Dagster reads: `dagster.yaml` in its home folder, and a workspace that names the code server.

The code server is the process in which Dagster loads LakeSync's definitions. `stack`, which runs `lakesync up`, calls
`write_files` at each start. A `dagster.yaml` that `lakesync up` did not write belongs to the user, and is used
unchanged. Unless the user chooses another run launcher, the *run host* starts Dagster's runs: a process that has
imported everything, and forks itself for each run. `services`, which starts both, asks
this module for their sockets: Unix sockets, which other users of the machine cannot reach.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

from lakesync.adapters.backend_config import write_targets
from lakesync.config import Config
from lakesync.model.errors import ConfigurationError

STORAGE_VARIABLE = "DAGSTER_STORAGE_URL"
"""The variable with the URL of Dagster's storage (`dagster.storage_url`), to which `dagster.yaml` refers."""

_WRITTEN = "# Written by `lakesync up` at each start."
"""The first line by which a generated `dagster.yaml` is recognised."""
_GENERATED = (
    _WRITTEN
    + """ To keep changes, remove this line.
telemetry:
  enabled: false
nux:
  enabled: false
storage: {storage}
run_coordinator:
  module: lakesync_dagster.run_launcher
  class: SlotCoordinator
  config:
    dequeue_interval_seconds: 1
run_launcher: {run_launcher}
concurrency:
  pools:
    default_limit: 1
    granularity: run
  runs:
    # the sum of what follows: no kind of run takes the slot of another
    max_concurrent_runs: {runs}
    tag_concurrency_limits:
{slots}
      # maintenance, which is a part of upkeep: with one run at a time, a slot is free for erasures
      - key: lakesync/upkeep
        limit: 1
run_monitoring:
  enabled: true
  start_timeout_seconds: 120
  cancel_timeout_seconds: 60
  max_runtime_seconds: {max_run_seconds}
  poll_interval_seconds: 10
  free_slots_after_run_end_seconds: 10
sensors:
  use_threads: true
  num_workers: 4
retention:
  sensor:
    purge_after_days:
      skipped: 1
      started: 1
      failure: 30
      success: 30
"""
)
_RUN_HOST_LAUNCHER = "RunHostLauncher"
"""The class of the run launcher that has the run host start runs."""
_SLOT = """\
      - key: lakesync/slot
        value: {kind}
        limit: {limit}"""
"""A limit of concurrent runs of one kind, in `dagster.yaml`."""
_MAX_TRANSFERS = 8
"""Runs of kind `move` at the same time, each of about 60 MB. They copy deltas to and between databases and object
stores: destinations, flows, tiers, migrations."""
_MAX_SOCKET_PATH = 100
"""Bytes in the path of a socket; some systems allow 104."""
_WORKSPACE = """\
# Written by `lakesync up` at each start.
load_from:
  - grpc_server:
      socket: {socket}
      location_name: lakesync
"""


def write_files(config: Config) -> Path:
    """Write the workspace, and `dagster.yaml` unless it is the user's own.

    Args:
        config: the settings, with every port chosen.

    Returns:
        The workspace's path.

    Raises:
        ConfigurationError: the user's own `dagster.yaml` cannot be read, or leaves a setting without effect.
    """
    home = config.dagster.home
    home.mkdir(parents=True, exist_ok=True)
    if has_user_file(config):
        _check_user_settings(config)
    else:
        (home / "dagster.yaml").write_text(_generated_settings(config), "utf-8")
    for socket in (code_socket(config), run_socket(config)):
        if socket.parent != home:
            _ensure_private(socket.parent)
        socket.unlink(missing_ok=True)  # left by a process that was killed
    workspace = home / "workspace.yaml"
    socket_text = json.dumps(str(code_socket(config)), ensure_ascii=False)
    workspace.write_text(_WORKSPACE.format(socket=socket_text), "utf-8")
    return workspace


def has_user_file(config: Config) -> bool:
    """Return whether `dagster.yaml` in Dagster's home is the user's own, without the first line of `lakesync up`."""
    try:
        return not (config.dagster.home / "dagster.yaml").read_text("utf-8").startswith(_WRITTEN)
    except FileNotFoundError:
        return False


def uses_run_host(config: Config) -> bool:
    """Return whether the run host starts Dagster's runs.

    Raises:
        ConfigurationError: the user's own `dagster.yaml` cannot be read.
    """
    if has_user_file(config):
        return (_user_settings(config).get("run_launcher") or {}).get("class") == _RUN_HOST_LAUNCHER
    return config.dagster.run_launcher is None


def has_storage(config: Config) -> bool:
    """Return whether Dagster's storage (its database) certainly exists, as SQLite files of an earlier start.

    Otherwise one of Dagster's processes must create it, if it is missing, before the others start.
    """
    return (
        config.dagster.storage_url is None and not has_user_file(config) and (config.dagster.home / "storage").exists()
    )


def run_slots(config: Config) -> dict[str, int]:
    """Return how many runs of each kind may be in progress at the same time, by the tag `lakesync/slot`.

    The kinds are `flush`, `move` (destinations, flows, tiers, migrations), `poll` (of connectors), `upkeep`
    (maintenance of the lake, and erasures) and `other`. Each adapter of a destination, flow, pair of tiers and
    scheduled migration has its own slot, up to `_MAX_TRANSFERS`, so that one that hangs delays no other. Flushes have
    their own slots, so that transfers and polls, which wait for a flush, cannot block it.
    """
    scheduled = sum(each.schedule is not None for each in config.migrations.values())
    adapters = sum(len(write_targets(config, each.to, each.tables)) for each in config.destinations.values())
    transfers = len(config.flows) + len(config.tiers) + scheduled + adapters
    return {"flush": 2, "move": min(max(2, transfers), _MAX_TRANSFERS), "poll": 2, "upkeep": 2, "other": 2}


def code_socket(config: Config) -> Path:
    """Return the path of the code server's socket.

    It is the same after a restart, because Dagster stores it with the history of each sensor and schedule.
    """
    return _socket(config, "code.sock")


def run_socket(config: Config) -> Path:
    """Return the path of the run host's socket."""
    return _socket(config, "runs.sock")


def _generated_settings(config: Config) -> str:
    """Return the text of `dagster.yaml`."""
    storage: dict[str, Any] = {"sqlite": {"base_dir": str(config.dagster.home / "storage")}}
    if config.dagster.storage_url is not None:
        storage = {"postgres": {"postgres_url": {"env": STORAGE_VARIABLE}}}
    launcher = config.dagster.run_launcher or {
        "module": "lakesync_dagster.run_launcher",
        "class": _RUN_HOST_LAUNCHER,
        "config": {"socket": str(run_socket(config))},
    }
    return _GENERATED.format(
        storage=json.dumps(storage, ensure_ascii=False),  # JSON is YAML
        run_launcher=json.dumps(launcher, ensure_ascii=False),
        max_run_seconds=config.dagster.max_run_seconds,
        runs=sum(run_slots(config).values()),
        slots="\n".join(_SLOT.format(kind=kind, limit=limit) for kind, limit in run_slots(config).items()),
    )


def _user_settings(config: Config) -> dict[str, Any]:
    """Return the settings in the user's own `dagster.yaml`; raise ConfigurationError if it cannot be read."""
    import yaml

    path = config.dagster.home / "dagster.yaml"
    try:
        content = yaml.safe_load(path.read_text("utf-8")) or {}
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{path} cannot be read: {error}") from error
    if not isinstance(content, dict):
        raise ConfigurationError(f"{path} must be a table of settings, as Dagster's documentation describes it")
    return content


def _check_user_settings(config: Config) -> None:
    """Reject settings that have no effect, because the user's own `dagster.yaml` replaces them.

    Raises:
        ConfigurationError: there are such settings, or the file cannot be read.
    """
    _user_settings(config)  # raises if the file cannot be read
    for name in ("storage_url", "run_launcher"):
        if getattr(config.dagster, name) is not None:
            raise ConfigurationError(
                f"dagster.{name} has no effect, because {config.dagster.home / 'dagster.yaml'} is a file of your own: "
                "set it there, or remove the file"
            )


def _socket(config: Config, name: str) -> Path:
    """Return the path of a socket: in Dagster's home, unless that path is too long for a socket."""
    path = config.dagster.home / name
    if len(os.fsencode(path)) < _MAX_SOCKET_PATH:
        return path
    short_name = f"{hashlib.sha256(os.fsencode(path)).hexdigest()[:16]}.sock"
    return Path(tempfile.gettempdir()) / f"lakesync-{os.getuid()}" / short_name


def _ensure_private(folder: Path) -> None:
    """Create a private folder in the shared temporary folder, or check that an existing one is private.

    Otherwise another user could replace a socket and receive its requests.

    Raises:
        ConfigurationError: the folder is not private to this user.
    """
    with suppress(FileExistsError):
        folder.mkdir(0o700)
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or stat.S_IMODE(status.st_mode) & 0o077:
        raise ConfigurationError(
            f"{folder} is not private to this user; remove it, or choose a data_dir with a shorter path"
        )
