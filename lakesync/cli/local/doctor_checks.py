"""The checks of `lakesync doctor`: `CHECKS` has a function for each. None of them changes anything.

A check gets the settings and returns a `CheckResult`. It may raise LakeSyncError, which `doctor` reports as a problem.
The platform is what `lakesync up` runs: the gateway, Spark, and Dagster, which runs the pipeline. Clients need none of
it. The gateway server has a *gateway*, a stream of changes, for each app. It stores the changes (deltas) that clients
push in the *staging store*; with *shards*, several stores have some of the tables each. The pipeline *flushes* deltas
to the *lake*, an Iceberg catalogue: to the *history* of all deltas, and to *state tables* with the current rows. *Sync
rules* consist of buckets, sets of rows that they give to some clients. An *issuer* is a login provider that signs
clients' tokens.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import requests

from lakesync.cli.commands import declared_gateways
from lakesync.cli.connection import connect, gateway_url, signing_secret
from lakesync.cli.dagster_client import READY_SECONDS, DagsterClient, dagster_url
from lakesync.cli.data_folder import running_service
from lakesync.cli.exit_codes import remedy_of
from lakesync.cli.local.doctor_machine import (
    CheckResult,
    disk,
    is_missing,
    jars,
    java,
    memory,
    off,
    ok,
    problem,
    python,
    warning,
)
from lakesync.cli.output import count
from lakesync.cli.pipeline_health import failing_parts, stalled_runs
from lakesync.cli.up.process import LOOPBACK, LOOPBACK_HOSTS, check_port
from lakesync.client.errors import UnreachableError
from lakesync.client.transports.http import clock_difference, error_from_response
from lakesync.model.errors import ConfigurationError, LakeSyncError, StagingUnavailableError, StartupError
from lakesync.model.hlc import MAX_DRIFT_MS
from lakesync.wire.http_sessions import RedirectSession, no_auth

if TYPE_CHECKING:
    from lakesync.cli.connection import GatewayConnection
    from lakesync.config import Config

_SECRET_BYTES = 32
"""Minimum length of the secret that signs tokens."""
_TIMEOUT_SECONDS = 3.0
"""Seconds to wait for the response of a server."""
_MAX_NAMED = 3
"""Gateways that a result names, at most."""
_MAX_GATEWAYS = 50
"""Gateways that the check `pipeline` calls, at most: a store may have thousands."""
_SPARK_CONNECT_PORT = 15002
"""The port of a Spark Connect URL without one."""


def _get(url: str) -> requests.Response:
    """Request a URL of the gateway without credentials."""
    with RedirectSession() as session:
        return session.get(url, timeout=_TIMEOUT_SECONDS, auth=no_auth)


def clock(config: Config) -> CheckResult:
    """Compare this machine's clock with the gateway's."""
    url = gateway_url(config)
    try:
        started = time.time()
        response = _get(f"{url}/health")
        local_time = (started + time.time()) / 2
        seconds_ahead = clock_difference(response.headers["Date"], local_time)
    except (requests.RequestException, KeyError, ValueError):
        return off(f"no gateway at {url} to compare with")
    found = f"{abs(seconds_ahead):.1f} s {'ahead of' if seconds_ahead > 0 else 'behind'} the gateway"
    max_seconds = MAX_DRIFT_MS / 1000
    if abs(seconds_ahead) > max_seconds:
        return problem(
            found,
            f"synchronise this machine's clock by NTP; the gateway rejects pushes more than {max_seconds:g} s ahead",
        )
    return ok(found)


def ports(config: Config) -> CheckResult:
    """Check that the ports of `lakesync up` are free, or used by this LakeSync."""
    own_ports = {urlsplit(str(running_service(config, name).get("url") or "")).port for name in ("gateway", "dagster")}
    url = urlsplit(gateway_url(config))
    if url.hostname in LOOPBACK_HOSTS and gateway(config).state == "ok":
        own_ports.add(url.port)
    configured = {"--port": config.gateway.port, "--dagster-port": config.dagster.port}  # 0: any free port
    errors = {
        f"{port} ({option})": error
        for option, port in configured.items()
        if port and port not in own_ports and (error := _port_error(port)) is not None
    }
    forbidden = [port for port, error in errors.items() if isinstance(error.__cause__, PermissionError)]
    numbers = ", ".join(str(port or "any") for port in configured.values())
    if forbidden:
        return warning(f"not permitted to this user: {', '.join(forbidden)}", "choose ports from 1024 on")
    if errors:
        remedy = "run `lakesync up --port 0 --dagster-port 0`, or stop the programs that use them"
        return warning(f"used by another program: {', '.join(errors)}", remedy)
    return ok(f"{numbers}: {'used by this LakeSync' if own_ports & set(configured.values()) else 'free'}")


def secret(config: Config) -> CheckResult:
    """Check the secret that signs tokens: whether it is set and long enough."""
    signing = signing_secret(config)
    if signing is None and config.gateway.issuers:
        return ok(
            "none: login providers sign all tokens. Commands such as `lakesync status` need --token-file, or "
            "LAKESYNC_JWT_SECRET, set here and for the gateway, to sign their own"
        )
    is_exposed = config.gateway.host not in LOOPBACK_HOSTS
    remedy = "run export LAKESYNC_JWT_SECRET=$(openssl rand -hex 32), with the same value for every gateway"
    if signing is None and is_exposed:
        return problem(f"none: without one, the gateway does not start on {config.gateway.host}", remedy)
    if signing is None:
        return off("none: a gateway on loopback accepts every caller; `lakesync up` generates a secret", remedy)
    length = len(signing.strip().encode())
    if length < _SECRET_BYTES:
        return problem(f"the secret has {length} bytes, {_SECRET_BYTES} are needed", remedy)
    return ok("set")


def issuers(config: Config) -> CheckResult:
    """Check that the keys of all issuers can be fetched."""
    from lakesync.auth import configured_issuers
    from lakesync.auth.keys import KeysUnavailableError

    if not config.gateway.issuers:
        return off("none configured; [[gateway.issuers]] declares a login provider")
    keys, failed = 0, []
    for issuer in configured_issuers(config):
        try:
            keys += len(issuer.key_set.load())
        except KeysUnavailableError as error:
            failed.append(f"{issuer.issuer}: {error}")
    if failed:
        return problem("\n".join(failed), "compare the settings with docs/login.md")
    return ok(f"{len(config.gateway.issuers)} with {count(keys, 'key')}")


def files(config: Config) -> CheckResult:
    """Check the files of schemas and sync rules that `[gateways]` names."""
    from lakesync.engine.declared_files import DeclaredFiles

    declared = [DeclaredFiles.of_gateway(each) for each in config.gateways.values()]
    schemas = sum(len(each.schemas) for each in declared)
    rules = sum(each.rules is not None for each in declared)
    if not schemas and not rules:
        return off("none: no gateway in lakesync.toml names files of schemas or rules")
    return ok(f"{count(schemas, 'schema')}, sync rules of {count(rules, 'gateway')}")


def staging(config: Config) -> CheckResult:
    """Check the staging stores: whether they exist, with the schema version of this LakeSync."""
    from lakesync.analysis.lost_store import check_not_lost
    from lakesync.staging import store_urls
    from lakesync.staging.shards import urls_by_shard

    if config.staging.url.startswith("memory://"):
        return warning(
            "in memory: its data is lost when the gateway stops", "set LAKESYNC_STAGING_URL, except in tests"
        )
    stores, missing = [], []
    for shard, url in urls_by_shard(config.shard_config, config.staging.url).items():
        try:
            stores.append(store_urls.store_status(url))
        except ConfigurationError:  # there is no store
            missing.append(shard)
        except StagingUnavailableError as error:
            setting = "[staging] url" if url == config.staging.url else f"shard_config.stores.{shard}"
            return problem(str(error), f"start its server, or correct user, password and database in {setting}")
    if not stores:
        try:
            check_not_lost(config)
        except ConfigurationError as error:
            return problem(str(error), "see 'A store that was lost' in docs/durability.md")
        return off("none yet; the first start creates it")
    if missing:
        return problem(
            f"shard {missing[0]} has no store, but other shards have",
            "restore its disk or database; if the shard is new, the next start creates the store",
        )
    schemas = [schema for store in stores for schema in store.schemas]
    old = [each for each in schemas if each.version < each.newest]
    new = [each for each in schemas if each.version > each.newest]
    if new:
        return problem(f"{new[0].database} was written by a newer LakeSync", "upgrade LakeSync")
    if old:
        return warning(
            f"{old[0].database} has the schema of an older LakeSync",
            "run `lakesync staging migrate`, or start a gateway",
        )
    gateways = len({head.gateway for store in stores for head in store.heads})
    unflushed = sum(head.deltas for store in stores for head in store.heads)
    size = sum(store.bytes for store in stores)
    return ok(f"{count(gateways, 'gateway')}, {count(size, 'byte')}, {count(unflushed, 'unflushed delta')}")


def catalogue(config: Config) -> CheckResult:
    """Check that the lake's catalogue can be read."""
    if is_missing("pyiceberg"):
        return off("pyiceberg is not installed", "run pip install 'lakesync[query]' to read the lake from this machine")
    from lakesync.analysis.catalogue import LakeReader, may_have_catalogue

    if not may_have_catalogue(config):
        return off("none yet; the first flush creates it")
    with LakeReader(config) as lake:
        return ok(f"{count(len(lake.state_tables), 'state table')}, history {'not empty' if lake.deltas else 'empty'}")


def warehouse(config: Config) -> CheckResult:
    """Check that the S3 buckets of the warehouse and of the checkpoints exist and can be read."""
    on_s3 = [uri for uri in (config.lake.warehouse, config.lake.checkpoints) if uri.startswith("s3://")]
    if not on_s3:
        return off("not needed: the lake is in folders")
    if is_missing("pyiceberg"):
        return off("pyiceberg is not installed", "run pip install 'lakesync[query]' to check the buckets")
    from pyiceberg.io.pyarrow import PyArrowFileIO

    from lakesync.analysis.catalogue import open_catalogue
    from lakesync.wire.frame_storage import s3_file_system

    with open_catalogue(config) as catalogue:
        file_io = PyArrowFileIO(catalogue.properties)
    buckets = list(dict.fromkeys(urlsplit(uri).netloc for uri in on_s3))
    for uri in on_s3:
        bucket = urlsplit(uri).netloc
        is_warehouse = uri == config.lake.warehouse  # opened with the catalogue's settings, as by Spark
        file_system = file_io.fs_by_scheme("s3", bucket) if is_warehouse else s3_file_system()
        try:
            exists = file_system.get_file_info(bucket).type.name != "NotFound"
        except OSError as error:
            return problem(
                f"the bucket {bucket} of {uri} cannot be read: {error}",
                "check AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_REGION and AWS_ENDPOINT_URL, and the catalogue's "
                "settings in [spark.settings]; see docs/cluster.md",
            )
        if not exists:
            return problem(f"there is no bucket {bucket}, which {uri} names", "create it, or correct [lake]")
    return ok(", ".join(buckets))


def gateway(config: Config) -> CheckResult:
    """Check that the gateway is ready."""
    url = gateway_url(config)
    try:
        response = _get(f"{url}/ready")
    except requests.RequestException:
        return off(f"no answer from {url}", "start one with `lakesync up` or `lakesync gateway`")
    if response.ok:
        return ok(f"{url} is ready")
    reason = error_from_response(response.status_code, response.content, response.headers)
    return problem(f"{url} is not ready: {reason}", "see 'Is it ready?' in docs/operations.md")


def pipeline(config: Config) -> CheckResult:
    """Check that flushes succeed, runs start and sensors report."""

    def report_of(remote: GatewayConnection) -> Any:
        return remote.get("/admin/metrics/{gateway}", clients=0)["pipeline"]  # clients=0: without a list of clients

    gateways = list(dict.fromkeys([*declared_gateways(config), *_stored_gateways(config)]))
    checked = gateways[:_MAX_GATEWAYS]
    answers, errors = _call_each(config, checked, report_of)
    reports = {name: report for name, report in answers.items() if report is not None}
    problems = [f"{name}: {problem}" for name, report in reports.items() for problem in failing_parts(report)]
    problems += [problem for report in reports.values() for problem in stalled_runs(report, time.time() * 1000)]
    if problems:
        logs = config.data_dir / "logs"
        return problem(
            "\n".join(dict.fromkeys(problems)),  # stalled runs are the same for all gateways
            f"see the last runs in `lakesync status`, their errors in Dagster's web UI, and the logs in {logs}",
        )
    found = "flushes succeed and sensors report"
    if errors:
        return _unchecked(found if reports else "", errors)
    if not reports:
        return off("no pipeline has ever reported; `lakesync up` starts one")
    return ok(found if checked == gateways else f"{found}; {len(checked)} of {len(gateways)} gateways checked")


def write_scope(config: Config) -> CheckResult:
    """Check that clients cannot bypass sync rules by writing: the write scope says which rows they may write."""

    def warning_of(remote: GatewayConnection) -> str | None:
        rules = remote.get("/admin/sync-rules/{gateway}")["rules"]
        return remote.write_scope_warning() if rules and rules["buckets"] else None

    answers, errors = _call_each(config, declared_gateways(config), warning_of)
    warnings = {name: warning for name, warning in answers.items() if warning is not None}
    if warnings:
        return warning(
            f"{', '.join(warnings)}: {next(iter(warnings.values()))}",
            "set write_scope in [gateways], or POST /admin/settings",
        )
    found = f"no gateway with rules has the write scope `any`; {len(answers)} checked"
    if errors:
        return _unchecked(found if answers else "", errors)
    return ok(found) if answers else off("no gateway is declared")


def spark(config: Config) -> CheckResult:
    """Check that Spark Connect accepts connections."""
    remote = config.spark.remote or running_service(config, "spark").get("remote")
    if not remote:
        return off("no server is known; `lakesync up` starts one")
    url = urlsplit(str(remote))
    host, port = url.hostname or "localhost", url.port or _SPARK_CONNECT_PORT
    try:
        with socket.create_connection(("127.0.0.1" if host == "localhost" else host, port), _TIMEOUT_SECONDS):
            return ok(f"{url.scheme}://{host}:{port} accepts connections")
    except OSError as error:
        remedy = f"see {config.data_dir / 'logs' / 'spark.log'}; `lakesync up` restarts it"
        if config.spark.remote:
            remedy = "start the server there, or correct the setting spark.remote"
        return problem(f"{host}:{port} does not answer: {error.strerror or error}", remedy)


def dagster(config: Config) -> CheckResult:
    """Check that Dagster has loaded the code location."""
    url = dagster_url(config)
    if url is None:
        return off("none is known; `lakesync up` starts it")
    with suppress(LakeSyncError):
        client = DagsterClient(url, READY_SECONDS)
        if client.is_location_loaded():
            if names := ", ".join(client.switched_off()):
                return warning(f"switched off in Dagster: {names}", f"see {url}/automation")
            return ok(f"{url} has loaded the assets")
    return problem(
        f"{url} does not answer, or the code location did not load",
        f"see {config.data_dir / 'logs' / 'code_server.log'} and {config.data_dir / 'logs' / 'dagster.log'}",
    )


CHECKS: dict[str, Callable[[Config], CheckResult]] = {  # in the order of the output
    each.__name__: each
    for each in (
        pipeline,
        *(python, disk, memory, clock, ports, secret, issuers, files, java, jars),
        *(staging, catalogue, warehouse, gateway, write_scope, spark, dagster),
    )
}


def _stored_gateways(config: Config) -> list[str]:
    """Return the ids of the gateways in this machine's store; none if it cannot be read, which `staging` reports."""
    from lakesync.staging import store_urls

    if config.staging.url.startswith("memory://"):
        return []
    try:
        return sorted({head.gateway for head in store_urls.store_status(config.staging.url).heads})
    except LakeSyncError:
        return []


def _call_each(
    config: Config, gateways: Iterable[str], call: Callable[[GatewayConnection], Any]
) -> tuple[dict[str, Any], dict[str, LakeSyncError]]:
    """Call a function with the connection to each gateway.

    Returns:
        The results by gateway, and the errors of the gateways that did not answer.
    """
    answers, errors = {}, {}
    for name in gateways:
        try:
            answers[name] = call(connect(config, gateway=name))
        except LakeSyncError as error:
            errors[name] = error
    return answers, errors


def _unchecked(found: str, errors: Mapping[str, LakeSyncError]) -> CheckResult:
    """Return the result of a check that could not call some of the gateways.

    Args:
        found: what the check found at the other gateways; empty if no gateway answered.
        errors: the errors by gateway.
    """
    last = list(errors.values())[-1]
    if not found and isinstance(last, UnreachableError):
        return off(str(last))
    names = ", ".join(list(errors)[:_MAX_NAMED]) + (", …" if len(errors) > _MAX_NAMED else "")
    return warning(
        f"{f'{found}; ' if found else ''}{len(errors)} not checked ({names}): {last}",
        remedy_of(type(last)) or "see what the gateway's log says about it",
    )


def _port_error(port: int) -> StartupError | None:
    """Return why no server can listen on a port of this machine; None if one can."""
    try:
        check_port(port, LOOPBACK, "")
    except StartupError as error:
        return error
    return None
