"""Iceberg's own REST catalogue (the fixture of its tests) over Postgres, with a warehouse on disk or S3."""

from __future__ import annotations

import hashlib
import os
import shutil
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

from jgo.maven import MavenContext

from lakesync.cli.up.jars import JARS, cache_folder, ensure
from lakesync.cli.up.process import Process, free_ports
from lakesync.cli.up.spark_server import java_home

_LIST = Path(__file__).with_name("rest_jars.txt")
_OF_SPARK = (
    *("hadoop-client-api", "hadoop-client-runtime", "httpcore", "jackson", "slf4j", "log4j", "avro", "aircompressor"),
    *("RoaringBitmap", "jcl-over-slf4j"),
)
"""The jars of pyspark that the server needs in addition to the list."""


@contextmanager
def rest_catalogue(postgres: str, s3: Mapping[str, str], warehouse: str, folder: Path, home: Path) -> Iterator[str]:
    """A server, as `http://HOST:PORT/`.

    Args:
        postgres: URI of the database for its tables.
        s3: the AWS variables; empty if the warehouse is on disk.
        warehouse: `s3://BUCKET/PREFIX`, or `file:///FOLDER`.
        folder: for its log.
        home: pyspark's folder.
    """
    (port,) = free_ports(1)
    database = urlsplit(postgres)
    settings = {
        "CATALOG_REST_PORT": str(port),
        "CATALOG_CATALOG__IMPL": "org.apache.iceberg.jdbc.JdbcCatalog",
        "CATALOG_URI": f"jdbc:postgresql://{database.hostname}:{database.port}{database.path}",
        "CATALOG_JDBC_USER": database.username or "",
        "CATALOG_JDBC_PASSWORD": database.password or "",
        "CATALOG_JDBC_SCHEMA__VERSION": "V1",
        "CATALOG_WAREHOUSE": warehouse,
        **_file_io(s3),
    }
    own = [*_jars(), *(ensure(jar, cache_folder()) for jar in JARS if jar.artifact == "postgresql")]
    spark = [jar for jar in sorted((home / "jars").glob("*.jar")) if jar.name.startswith(_OF_SPARK)]
    command = [
        *(str(java_home() / "bin" / "java"), "-Xmx256m", "-cp", os.pathsep.join(map(str, [*own, *spark]))),
        "org.apache.iceberg.rest.RESTCatalogServer",
    ]
    server = Process("REST catalogue", command, {**settings, **s3}, folder / "rest.log")
    try:
        server.wait_ready(lambda: _listens(port), timeout=120)
        yield f"http://127.0.0.1:{port}/"
    finally:
        server.stop(grace=5)


def _file_io(s3: Mapping[str, str]) -> dict[str, str]:
    if not s3:
        return {"CATALOG_IO__IMPL": "org.apache.iceberg.hadoop.HadoopFileIO"}
    return {
        "CATALOG_IO__IMPL": "org.apache.iceberg.aws.s3.S3FileIO",
        "CATALOG_S3_ENDPOINT": s3["AWS_ENDPOINT_URL"],
        "CATALOG_S3_PATH__STYLE__ACCESS": "true",
        "CATALOG_CLIENT_REGION": s3["AWS_REGION"],
    }


def _jars() -> list[Path]:
    """Return the server's pinned jars; they are downloaded once."""
    folder = cache_folder() / "rest"
    folder.mkdir(parents=True, exist_ok=True)
    found = []
    for line in _LIST.read_text("ascii").splitlines():
        name, digest = line.split()
        group, artifact, version, *classifier = name.split(":")
        path = folder / f"{'-'.join([artifact, version, *classifier])}.jar"
        if not path.exists():
            project = MavenContext(repo_cache=folder / "m2", timeout=120).project(group, artifact).at_version(version)
            fetched = project.artifact(classifier=classifier[0]) if classifier else project.artifact()
            shutil.copy(fetched.resolve(), path)
        with path.open("rb") as file:
            if hashlib.file_digest(file, "sha256").hexdigest() != digest:
                raise ValueError(f"{path} is not the {name} that is pinned; delete it and try again")
        found.append(path)
    return found


def _listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except OSError:
        return False
    return True
