"""`lakesync query` over S3 with the address and credentials of the catalogue's settings, as Spark uses them."""

import os

import boto3
import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog

from lakesync.analysis.catalogue import LakeReader
from lakesync.analysis.query import query
from lakesync.config import load
from lakesync.model.errors import LakeUnavailableError
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


def test_an_unreachable_rest_catalogue_is_reported_as_lake_unavailable(place):
    nowhere = place.replace(lake={"catalog_uri": "http://127.0.0.1:9/"})
    with pytest.raises(LakeUnavailableError, match=r"catalogue at http://127.0.0.1:9/ cannot be read: .*refused"):
        LakeReader(nowhere)
