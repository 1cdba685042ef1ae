"""Tables on S3 in a session's catalogue, in Postgres or over REST, as this process and tasks read them."""

from pathlib import Path
from types import SimpleNamespace
from urllib.parse import urlsplit

import boto3
import pyarrow as pa
import pyspark
import pytest
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.expressions import EqualTo
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField, StringType

from lakehouse.data_files import DataFile, read_rows
from lakehouse.table_access import open_table, planned_files
from lakesync.model.errors import ConfigurationError
from tests.cluster.rest_catalogue import rest_catalogue

FIELDS = [NestedField(1, "batch", StringType()), NestedField(2, "size", LongType())]

WAREHOUSE = "s3://committed/warehouse"


@pytest.fixture
def variables(aws):
    """The AWS variables, with a bucket."""
    boto3.client("s3").create_bucket(Bucket="committed")
    return aws


@pytest.fixture(params=["postgres", pytest.param("rest", marks=pytest.mark.deep)])
def catalogue(request, own_database, variables, tmp_path):
    """The session's configuration of the catalogue, and the catalogue."""
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


class Session:
    """The part of a session that these tests need."""

    def __init__(self, place):
        settings = {f"spark.sql.catalog.lake.{key}": value for key, value in place.items()}
        self.conf = SimpleNamespace(getAll=settings)


def test_a_table_on_s3_is_planned_in_the_driver_and_read_by_tasks(catalogue):
    place, made = catalogue
    made.create_namespace("lakesync")
    table = made.create_table("lakesync.t", Schema(*FIELDS))
    for batch in ("one", "two"):
        table.append(pa.table({"batch": [batch] * 3, "size": [1, 2, 3]}))
    made.close()
    with open_table(Session(place), "`lake`.`lakesync`.`t`") as opened:
        assert opened.metadata.current_snapshot_id == table.current_snapshot().snapshot_id
        found = planned_files(opened, opened.metadata.current_snapshot_id, EqualTo("batch", "two"))  # type: ignore[call-arg]
        assert planned_files(opened, None) == []
    files = [DataFile.of(task) for task in found]
    assert all(file.path.startswith(f"{WAREHOUSE}/") for file in files)
    (read,) = [rows for file in files for rows in read_rows(file, pa.schema([("batch", pa.string())]))]
    assert read["batch"].to_pylist() == ["two"] * 3


def test_an_unsupported_catalogue_type_is_rejected_by_name():
    for place in ({"type": "hadoop", "warehouse": WAREHOUSE}, {"type": "jdbc", "uri": "jdbc:mysql://host/db"}):
        refused = pytest.raises(ConfigurationError, match=r"lake\.catalog_uri")
        with refused, open_table(Session(place), "`lake`.`lakesync`.`t`"):
            pass
