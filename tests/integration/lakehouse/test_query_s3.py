"""`lakesync query` over S3 with the address and credentials of the catalogue's settings, as Spark uses them."""

import os
import re
from contextlib import closing

import boto3
import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog

from lakesync.adapters import DeltaQuery
from lakesync.adapters.backend_config import open_backend, resolve_backend
from lakesync.analysis.catalogue import LakeReader
from lakesync.analysis.query import query
from lakesync.config import load
from lakesync.model.errors import ConfigurationError, LakeUnavailableError
from lakesync.testing.servers import Response, serve
from tests.unit.analysis.test_namespaces import HISTORY, delta

KEYS = {"s3.access-key-id": "any", "s3.secret-access-key": "any"}


@pytest.fixture
def place(s3_endpoint, tmp_path, monkeypatch):
    """A lake of four deltas; no environment variable has the address of S3."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    said = {"s3.endpoint": s3_endpoint, "client.region": "us-east-1", "s3.path-style-access": "true", **KEYS}
    settings = {f"spark.sql.catalog.lake.{name}": value for name, value in said.items()}
    lake = {"warehouse": "s3://asked/warehouse", "checkpoints": "s3://asked/checkpoints"}
    config = load({"data_dir": tmp_path, "lake": lake, "spark": {"settings": settings}})
    keys = {"aws_access_key_id": "any", "aws_secret_access_key": "any", "region_name": "us-east-1"}
    boto3.client("s3", endpoint_url=s3_endpoint, **keys).create_bucket(Bucket="asked")
    catalogue = SqlCatalog(
        "lake",
        uri=config.lake.catalog_uri,
        warehouse=config.lake.warehouse,
        **{"s3.endpoint": s3_endpoint, "s3.region": "us-east-1", **KEYS},
    )
    catalogue.create_namespace("lakesync")
    rows = [delta(number, "g", f"{number}", '"a"') for number in range(4)]
    catalogue.create_table("lakesync.deltas", HISTORY).append(pa.Table.from_pylist(rows, HISTORY))
    catalogue.close()
    return config


def test_a_query_reaches_s3_by_the_settings_of_the_catalogue(place):
    found = query(place, "SELECT gateway, count(DISTINCT delta_id) AS n FROM deltas GROUP BY ALL").to_pylist()
    assert found == [{"gateway": "g", "n": 4}]


def test_a_flow_from_the_lake_reaches_s3_by_the_settings_of_the_catalogue(place):
    """As do migrations and sources that name `lake`."""
    with closing(open_backend(resolve_backend(place, "lake"))) as lake:
        assert len(lake.query_deltas_since(DeltaQuery()).deltas) == 4


SIGNED = {
    "rest.auth.type": "sigv4",
    "rest.signing-name": "glue",
    "rest.signing-region": "eu-west-1",
    "rest.access-key-id": "k1",
    "rest.secret-access-key": "secret",
}
"""Settings of Iceberg in Java for a catalogue such as AWS Glue."""


class Forbidding:
    """A REST catalogue that answers every request with 403, and keeps the credentials of each."""

    def __init__(self):
        self.credentials = []

    def respond(self, request):
        self.credentials.append(request.headers.get("authorization", ""))
        return Response(403)

    def now(self):
        return 0


def test_queries_and_flows_sign_requests_to_a_rest_catalogue_as_spark_does(tmp_path):
    settings = {f"spark.sql.catalog.lake.{name}": value for name, value in SIGNED.items()}
    service = Forbidding()
    with serve(service) as server:
        lake = {"catalog_uri": server.url, "warehouse": "s3://asked/warehouse"}
        config = load({"data_dir": tmp_path, "lake": lake, "spark": {"settings": settings}})
        with pytest.raises(LakeUnavailableError):
            LakeReader(config)
        with pytest.raises(ConfigurationError):
            open_backend(resolve_backend(config, "lake"))
    signed = re.compile(r"AWS4-HMAC-SHA256 Credential=k1/\d+/eu-west-1/glue/aws4_request, ")
    assert [bool(signed.match(each)) for each in service.credentials] == [True, True]


def test_an_unreachable_rest_catalogue_is_reported_as_lake_unavailable(place):
    nowhere = place.replace(lake={"catalog_uri": "http://127.0.0.1:9/"})
    with pytest.raises(LakeUnavailableError, match=r"catalogue at http://127.0.0.1:9/ cannot be read: .*refused"):
        LakeReader(nowhere)
