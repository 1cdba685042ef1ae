"""Files that tasks wrote to S3, committed by pyiceberg to the catalogue a session names: in Postgres, or by REST."""

from pathlib import Path
from types import SimpleNamespace
from urllib.parse import urlsplit

import boto3
import pyarrow as pa
import pyspark
import pytest
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.schema import Schema

from lakehouse.catalogue import iceberg_table
from lakehouse.commits import MovedError, commit_files, set_properties
from lakehouse.data_files import DataFiles, read_files
from tests.cluster.rest_catalogue import rest_catalogue
from tests.unit.test_table_files import FIELDS, SPEC, held, planned, written

WAREHOUSE = "s3://committed/warehouse"


@pytest.fixture
def variables(aws):
    """Those of AWS, with a bucket behind them."""
    boto3.client("s3").create_bucket(Bucket="committed")
    return aws


@pytest.fixture(params=["postgres", pytest.param("rest", marks=pytest.mark.deep)])
def catalogue(request, own_database, variables, tmp_path):
    """How a session knows it, and it itself."""
    if request.param == "rest":
        with rest_catalogue(own_database, variables, WAREHOUSE, tmp_path, Path(pyspark.__file__).parent) as url:
            place = {"type": "rest", "uri": url, "warehouse": WAREHOUSE}
            yield place, RestCatalog("lake", uri=url, warehouse=WAREHOUSE, **{"s3.endpoint": s3_of(variables)})
        return
    parts = urlsplit(own_database)
    where = f"{parts.hostname}:{parts.port}{parts.path}"
    place = {"type": "jdbc", "uri": f"jdbc:postgresql://{where}", "jdbc.user": "postgres", "warehouse": WAREHOUSE}
    uri = f"postgresql+psycopg://postgres@{where}"
    yield place, SqlCatalog("lake", uri=uri, warehouse=WAREHOUSE, **{"s3.endpoint": s3_of(variables)})


def s3_of(variables):
    return variables["AWS_ENDPOINT_URL"]


def test_what_tasks_wrote_to_s3_is_committed_on_top_of_what_was_read_or_nowhere(catalogue):
    place, made = catalogue
    made.create_namespace("lakesync")
    made.create_table("lakesync.t", Schema(*FIELDS), partition_spec=SPEC)
    made.close()
    settings = {f"spark.sql.catalog.lake.{key}": value for key, value in place.items()}
    said = SimpleNamespace(conf=SimpleNamespace(getAll=settings))  # all that is asked of a session
    with iceberg_table(said, "`lake`.`lakesync`.`t`") as table, iceberg_table(said, "lake.lakesync.t") as other:
        first = commit_files(table, None, written(table, "one"))
        with pytest.raises(MovedError):
            commit_files(other, None, written(other, "two"))
        second = commit_files(table.refresh(), first, written(table, "three", 2), properties={"lakesync.mark": "3"})
        assert held(table) == ["one"] * 3 + ["three"] * 2
        assert (table.properties["lakesync.mark"], table.current_snapshot().snapshot_id) == ("3", second)
        set_properties(table, {"lakesync.mark": "4"})
        assert other.refresh().properties["lakesync.mark"] == "4"
        files = DataFiles.of(list(planned(other, "three")))  # as a merge's tasks read them
        assert all(path.startswith(f"{WAREHOUSE}/") for path in files.data)
        (read,) = read_files(files, pa.schema([("batch_id", pa.string())]))
        assert read["batch_id"].to_pylist() == ["three"] * 2
