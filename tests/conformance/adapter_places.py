"""The adapters that the suite runs over: one line for each. Add yours here."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

import boto3
import psycopg
import pymysql
import requests
from botocore.exceptions import ClientError

from lakesync.adapters import (
    CompositeAdapter,
    DatabaseAdapter,
    FanOutAdapter,
    LakeAdapter,
    LifecycleAdapter,
    LocalDisk,
    ObjectDeltas,
    Route,
    SqliteAdapter,
    as_database,
    open_adapter,
)
from lakesync.adapters.backends.bigquery import BigQueryAdapter
from lakesync.adapters.backends.mysql import MySqlAdapter
from lakesync.adapters.backends.postgres import PostgresAdapter
from lakesync.adapters.object_store.s3 import S3Objects
from lakesync.adapters.uri import BackendUri

SERVERS: dict[str, str] = {}
"""The addresses of this session's servers, by fixture; filled when a test requests them."""


def start_server(request) -> None:
    """Start the server that a fixture's place needs; the fixture's parameter is the name of the place."""
    fixture = NEEDS.get(request.param)
    if fixture is not None:
        SERVERS[fixture] = request.getfixturevalue(fixture)


def _own(folder: Path) -> str:
    """A database name derived from a folder."""
    return "own_" + hashlib.sha256(str(folder).encode()).hexdigest()[:16]


def postgres_uri(folder: Path) -> str:
    """The address of a new schema for the folder."""
    name = _own(folder)
    with psycopg.connect(SERVERS["postgres_uri"], autocommit=True) as sql:
        sql.execute(f"CREATE SCHEMA IF NOT EXISTS {name}".encode())
    return f"{SERVERS['postgres_uri']}?options={quote(f'-csearch_path={name}')}"


def mysql_uri(folder: Path) -> str:
    """The address of a new database for the folder."""
    name, server = _own(folder), BackendUri.parse(SERVERS["mariadb_uri"])
    sql = pymysql.connect(host=server.host, port=server.port or 0, user=server.user, password=server.password)
    with sql, sql.cursor() as cursor:
        cursor.execute(f"CREATE DATABASE IF NOT EXISTS {name}")
    return f"{SERVERS['mariadb_uri']}/{name}"


def s3_objects(folder: Path) -> LakeAdapter:
    """An object store in a new bucket for the folder, under a prefix that no other store's keys may share."""
    endpoint, bucket = SERVERS["s3_endpoint"], _own(folder).replace("_", "-")
    requests.put(f"{endpoint}/{bucket}", timeout=30)
    return S3Objects(bucket, "a/b", endpoint=endpoint, region="us-east-1", access_key="k", secret_key="s")


def strict_s3_objects(folder: Path) -> LakeAdapter:
    """The same on the S3 server that checks keys."""
    keys = {"endpoint": SERVERS["strict_s3_endpoint"], "region": "us-east-1", "access_key": "k", "secret_key": "s"}
    bucket = _own(folder).replace("_", "-")
    with suppress(ClientError):  # the bucket exists already
        boto3.client(
            "s3",
            endpoint_url=keys["endpoint"],
            region_name=keys["region"],
            aws_access_key_id=keys["access_key"],
            aws_secret_access_key=keys["secret_key"],
        ).create_bucket(Bucket=bucket)
    return S3Objects(bucket, "a/b", **keys)


def bigquery_uri(folder: Path) -> str:
    """The address of a new dataset for the folder."""
    endpoint, name = SERVERS["bigquery_endpoint"], _own(folder)
    about = {"datasetReference": {"projectId": "p", "datasetId": name}}
    requests.post(f"{endpoint}/bigquery/v2/projects/p/datasets", json=about, timeout=60)
    return f"bigquery://p/{name}?endpoint={endpoint}"


def through(kind: str, port: int, folder: Path) -> DatabaseAdapter:
    """The same adapter, with its server at another loopback port."""
    uri = _URIS[kind](folder)
    return as_database(open_adapter(uri.replace(f":{port_of(kind)}", f":{port}")))


def port_of(kind: str) -> int:
    """The port of a place's server."""
    return int(SERVERS[NEEDS[kind]].rpartition("127.0.0.1:")[2].partition("/")[0])


def _s3_uri(folder: Path, objects: Callable[[Path], LakeAdapter], fixture: str) -> str:
    objects(folder).close()
    bucket = _own(folder).replace("_", "-")
    return f"s3://{bucket}/a/b?endpoint={SERVERS[fixture]}&region=us-east-1&access_key=k&secret_key=s"


_URIS: dict[str, Callable[[Path], str]] = {
    "postgres": postgres_uri,
    "mariadb": mysql_uri,
    "bigquery": bigquery_uri,
    "parquet on s3": lambda folder: _s3_uri(folder, s3_objects, "s3_endpoint"),
    "parquet on strict s3": lambda folder: _s3_uri(folder, strict_s3_objects, "strict_s3_endpoint"),
}


def nested(folder: Path) -> DatabaseAdapter:
    """Every composition, nested in another one."""
    opened = [SqliteAdapter(folder / f"{name}.db") for name in ("primary", "secondary", "hot", "cold")]
    fan_out = FanOutAdapter(opened[0], {"copy": opened[1]})
    return CompositeAdapter([Route(frozenset({"notes", "u"}), fan_out)], LifecycleAdapter(opened[2], opened[3], 0))


OBJECT_STORES: dict[str, Callable[[Path], LakeAdapter]] = {
    "local disk": lambda folder: LocalDisk(folder / "objects"),
    "s3": s3_objects,
    "strict s3": strict_s3_objects,
}
"""Open an object store over a folder; a second call opens another one over the same objects."""

DATABASES: dict[str, Callable[[Path], Any]] = {
    "sqlite": lambda folder: SqliteAdapter(folder / "deltas.db"),
    "postgres": lambda folder: PostgresAdapter(postgres_uri(folder)),
    "mariadb": lambda folder: MySqlAdapter(mysql_uri(folder)),
    "nested": nested,
    "bigquery": lambda folder: BigQueryAdapter(bigquery_uri(folder)),
    "parquet on local disk": lambda folder: ObjectDeltas(LocalDisk(folder / "objects")),
    "json on local disk": lambda folder: ObjectDeltas(LocalDisk(folder / "objects"), "json"),
    "parquet on s3": lambda folder: ObjectDeltas(s3_objects(folder)),
    "parquet on strict s3": lambda folder: ObjectDeltas(strict_s3_objects(folder)),
}
"""Open an adapter over a folder; a second call opens another one over the same deltas."""

NEEDS = {
    "bigquery": "bigquery_endpoint",
    "postgres": "postgres_uri",
    "mariadb": "mariadb_uri",
    "parquet on s3": "s3_endpoint",
    "parquet on strict s3": "strict_s3_endpoint",
    "s3": "s3_endpoint",
    "strict s3": "strict_s3_endpoint",
}
"""The fixtures of the servers that these adapters need."""

TABLES = ("sqlite", "postgres", "mariadb", "bigquery")
"""Adapters that also store tables of rows, and marks."""

DEEP = {"parquet on strict s3"}
"""Adapters that only deep tests use, because their servers must be built first."""

KEEPS_BATCHES = {"parquet on local disk", "json on local disk", "parquet on s3", "parquet on strict s3"}
"""Adapters that return a delta once for each batch that contains it."""

COARSE_ARRIVALS = {"json on local disk"}
"""Adapters that return the batch's last arrival for every delta of a batch."""

EXAMPLES = {
    "nested": 8,
    "postgres": 12,
    "mariadb": 8,
    "bigquery": 2,
    **dict.fromkeys(("parquet on s3", "parquet on strict s3", "s3", "strict s3"), 4),
}
"""The number of histories for adapters with a slow server; 40 for the others."""

UNDER_TEST = os.environ.get("LAKESYNC_ADAPTER_UNDER_TEST")
"""The URI of another adapter, with `{folder}` for a new folder; the suite then runs over that one only."""

if UNDER_TEST is not None:
    DATABASES = {"yours": lambda folder: as_database(open_adapter(UNDER_TEST.format(folder=folder)))}
    TABLES = ("yours",)
    EXAMPLES["yours"] = 5
