"""`lakesync doctor`, and the reader of the lake, for a lake on Postgres and S3 that is new, misspelt or unreachable."""

from __future__ import annotations

import boto3
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.schema import Schema
from sqlalchemy import create_engine, text

from lakesync.analysis.catalogue import LakeReader, open_catalogue
from lakesync.analysis.lost_store import check_not_lost
from lakesync.cli.local.doctor_checks import catalogue, warehouse
from lakesync.config import Config, load
from lakesync.model.errors import ConfigurationError, LakeUnavailableError

BUCKET = "doctored"
LAKE = {"warehouse": f"s3://{BUCKET}/warehouse", "checkpoints": f"s3://{BUCKET}/checkpoints"}


@pytest.fixture
def lake(own_database, aws, tmp_path) -> Config:
    """A new lake: an empty database and an empty bucket."""
    boto3.client("s3").create_bucket(Bucket=BUCKET)
    return load({"data_dir": tmp_path, "lake": {"catalog_uri": own_database, **LAKE}})


def test_a_database_without_a_catalogue_is_an_empty_lake(lake):
    assert catalogue(lake).state == "ok"
    with LakeReader(lake) as reader:
        assert (reader.state_tables, reader.deltas) == ({}, None)


def test_the_cause_is_named_if_a_catalogue_cannot_be_read(lake, own_database):
    missing = lake.replace(lake={"catalog_uri": f"{own_database}_missing"})
    with pytest.raises(LakeUnavailableError, match=r"cannot be read: .*does not exist"):
        catalogue(missing)
    engine = create_engine(own_database.replace("postgresql:", "postgresql+psycopg:", 1))
    with engine.begin() as connection:  # another program's table of the same name
        connection.execute(text("CREATE TABLE iceberg_tables (other int)"))
    engine.dispose()
    with pytest.raises(LakeUnavailableError, match=r"cannot be read: .*column"):
        catalogue(lake)


def test_a_bucket_that_does_not_exist_is_a_problem(lake):
    assert warehouse(lake).state == "ok"
    for setting in LAKE:
        misspelt = lake.replace(lake={setting: "s3://misspelt/x"})
        assert warehouse(misspelt)[:2] == ("problem", "there is no bucket misspelt, which s3://misspelt/x names")


def test_a_table_whose_storage_cannot_be_read_is_reported(lake, monkeypatch):
    with open_catalogue(lake) as opened:
        assert isinstance(opened, SqlCatalog)
        opened.create_tables()
        opened.create_namespace(lake.lake.system_namespace)
        table = opened.create_table((lake.lake.system_namespace, "deltas"), Schema())
    with monkeypatch.context() as unreachable:
        unreachable.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
        with pytest.raises(LakeUnavailableError, match=r"the table lakesync.deltas of the lake cannot be read"):
            catalogue(lake)
        # a gateway must not start with an empty store, because the lake may have deltas
        with pytest.raises(ConfigurationError, match=r"there is no staging store at .*, and the table lakesync.deltas"):
            check_not_lost(lake)
    boto3.client("s3").delete_object(Bucket=BUCKET, Key=table.metadata_location.removeprefix(f"s3://{BUCKET}/"))
    with pytest.raises(LakeUnavailableError, match=r"a file of the lake's table lakesync.deltas that does not exist"):
        catalogue(lake)


def test_local_folders_need_no_bucket(tmp_path):
    assert warehouse(load({"data_dir": tmp_path})).state == "off"
