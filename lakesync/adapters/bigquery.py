"""BigQuery: a load job into a table of its own, then one MERGE, which is the whole of a batch or nothing.

There are no transactions over several statements here: rows first and a mark last, each repeatable, so that a crash
between them repeats work and loses none. Each call costs jobs, so this is for batches, not for single rows.

Needs google-cloud-bigquery: `pip install 'lakesync[bigquery]'`. Tested on an emulator.
"""

from __future__ import annotations

import io
import re
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Raw

from lakesync.adapters.sql import Column, Connection, Dialect, Kind, Refusal, SqlAdapter, Value
from lakesync.adapters.uri import Address, without_password
from lakesync.model.errors import AdapterError, ConfigurationError
from lakesync.model.optional_imports import extra

if TYPE_CHECKING:
    import pyarrow as pa
    from google.cloud import bigquery

_TYPES: dict[Kind, str] = {
    "integer": "INT64",
    "number": "FLOAT64",
    "boolean": "BOOL",
    "json": "JSON",
    "time": "TIMESTAMP",
}
_OPTIONS = frozenset({"location", "endpoint"})
_SCRATCH = re.compile(r"\blakesync_(?:incoming|rows|keys|letters)\b")
_SECONDS = 60.0


class BigQueryAdapter(SqlAdapter):
    """Over one dataset."""

    def __init__(self, uri: str) -> None:
        """Args: uri: `bigquery://PROJECT/DATASET?location=EU`; `endpoint=…` is an emulator's, without credentials.

        Raises:
            ConfigurationError: the URI names no dataset, or the driver is not installed.
        """
        super().__init__(BigQueryExecutor(uri), BigQueryDialect())


class BigQueryDialect(Dialect):
    """SQL as BigQuery has it."""

    transactions = False

    def column(self, kind: Kind) -> str:
        """The type of a column; strings compare by code point."""
        return _TYPES.get(kind, "STRING")

    def scratch(self, name: str, columns: Sequence[Column], key: Sequence[str]) -> Sequence[str]:  # noqa: ARG002
        """A table that the executor names for its connection alone, and removes; one left by a crash goes in a day."""
        defined = ", ".join(f"{column.name} {self.column(column.kind)}" for column in columns)
        gone = "expiration_timestamp = TIMESTAMP_ADD(CURRENT_TIMESTAMP(), INTERVAL 1 DAY)"
        return [f"CREATE OR REPLACE TABLE {name} ({defined}) OPTIONS ({gone})"]

    def merge(self, table: str, scratch: str, columns: Sequence[str], key: Sequence[str], update: Sequence[str]) -> str:
        """MERGE."""
        same = " AND ".join(f"t.{column} = s.{column}" for column in key)
        matched = ", ".join(f"{column} = s.{column}" for column in update)
        return (
            f"MERGE INTO {table} t USING {scratch} s ON {same}"
            + (f" WHEN MATCHED THEN UPDATE SET {matched}" if matched else "")
            + f" WHEN NOT MATCHED THEN INSERT ({', '.join(columns)})"
            + f" VALUES ({', '.join(f's.{column}' for column in columns)})"
        )

    def checksum(self, text: str) -> str:
        """By the digits of an MD5, read as a hexadecimal number."""
        return f"CAST(CONCAT('0x', SUBSTR(TO_HEX(MD5({text})), 1, 8)) AS INT64)"

    def text(self, column: Column) -> str:
        """As text; JSON as it is spelled there."""
        if column.kind == "json":
            return f"TO_JSON_STRING({column.name})"
        return f"CAST({column.name} AS STRING)"

    def divided(self, number: str, by: int) -> str:
        """By DIV, as `/` gives fractions."""
        return f"DIV({number}, {by})"

    def quote(self, name: str) -> str:
        """A name in backticks."""
        return f"`{name}`"

    def table(
        self,
        name: str,
        columns: Sequence[Column],
        key: Sequence[str],
    ) -> Sequence[str]:
        """A table that lies in the order of its key."""
        defined = ", ".join(self.define(column) for column in columns)
        return [f"CREATE TABLE IF NOT EXISTS {name} ({defined}) CLUSTER BY {', '.join(key)}"]

    def index(self, name: str, table: str, columns: Sequence[str]) -> Sequence[str]:  # noqa: ARG002
        """There are none."""
        return []

    def define(self, column: Column) -> str:
        """A column: the default stands before NOT NULL, and JSON's is JSON."""
        default = f" DEFAULT JSON {column.default}" if column.default is not None else ""
        return f"{column.name} {self.column(column.kind)}{default}{' NOT NULL' * column.required}"


class BigQueryExecutor:
    """One client; what it calls a connection is a name for scratch tables."""

    def __init__(self, uri: str) -> None:
        """Args: uri: `bigquery://PROJECT/DATASET`.

        Raises:
            ConfigurationError: it names no dataset, or the driver is not installed.
        """
        with extra("bigquery", "BigQuery needs its driver"):
            from google.api_core.exceptions import GoogleAPIError
            from google.auth.exceptions import GoogleAuthError
            from google.cloud import bigquery
            from requests import RequestException
        address = Address.of(uri, _OPTIONS)
        self._project, self._dataset = address.host, address.path
        if not self._project or not self._dataset or "/" in self._dataset:
            raise ConfigurationError(f"{without_password(uri)!r} names no dataset: write bigquery://PROJECT/DATASET")
        self._driver = bigquery
        self._errors = (GoogleAPIError, GoogleAuthError, RequestException)
        self._options = address.options
        self._client: bigquery.Client | None = None

    @contextmanager
    def connect(self) -> Iterator[Connection]:
        """A name for scratch tables, which are removed at the end."""
        try:
            if self._client is None:
                self._client = self._made()
            connection = _BigQueryConnection(self._client, f"{self._project}.{self._dataset}")
            try:
                yield connection
            finally:
                connection.clear()
        except self._errors as error:
            raise AdapterError(f"BigQuery, dataset {self._dataset!r} of {self._project!r}, refused: {error}") from error

    def close(self) -> None:
        """Close the client."""
        if self._client is not None:
            self._client.close()  # type: ignore[no-untyped-call]

    def _made(self) -> bigquery.Client:
        given: dict[str, Any] = {"project": self._project, "location": self._options.get("location")}
        if "endpoint" in self._options:
            from google.auth.credentials import AnonymousCredentials

            given |= {
                "credentials": AnonymousCredentials(),  # type: ignore[no-untyped-call]
                "client_options": {"api_endpoint": self._options["endpoint"]},
            }
        return self._driver.Client(**given)


class _BigQueryConnection:
    def __init__(self, client: bigquery.Client, dataset: str) -> None:
        from google.cloud.bigquery import retry

        self._client = client
        self._dataset = dataset
        self._token = uuid.uuid4().hex[:12]
        self._scratch: set[str] = set()
        self._retry = retry.DEFAULT_RETRY.with_timeout(_SECONDS)
        self._job_retry = retry.DEFAULT_JOB_RETRY.with_timeout(_SECONDS)

    def execute(self, statement: str, values: Sequence[Value] = ()) -> int:
        job = self._job(statement, values)
        self._result(job)
        return int(job.num_dml_affected_rows or 0)

    def rows(self, statement: str, values: Sequence[Value] = ()) -> list[tuple[Any, ...]]:
        return [tuple(row.values()) for row in self._result(self._job(statement, values))]

    def arrow(self, statement: str, values: Sequence[Value], schema: pa.Schema) -> pa.Table:
        found = self._result(self._job(statement, values))
        return found.to_arrow(create_bqstorage_client=False).cast(schema)

    def columns(self, table: str) -> list[str]:
        from google.api_core.exceptions import NotFound

        try:
            found = self._client.get_table(f"{self._dataset}.{table}", retry=self._retry, timeout=_SECONDS)
        except NotFound:
            return []
        return [field.name for field in found.schema]

    def load(self, table: str, rows: pa.Table) -> None:
        from google.cloud import bigquery

        config = bigquery.LoadJobConfig(
            source_format=bigquery.SourceFormat.NEWLINE_DELIMITED_JSON,
            write_disposition=bigquery.WriteDisposition.WRITE_APPEND,
        )
        name = self._own(table)
        schema = self._client.get_table(f"{self._dataset}.{name}", retry=self._retry, timeout=_SECONDS).schema
        job = self._client.load_table_from_file(
            io.BytesIO(_lines(rows, {field.name: field.field_type for field in schema})),
            f"{self._dataset}.{name}",
            job_config=config,
            rewind=True,
            num_retries=3,
            timeout=_SECONDS,
        )
        job.result(retry=self._retry, timeout=None)

    def refusal(self, error: BaseException) -> Refusal | None:
        from google.api_core.exceptions import BadRequest, ClientError

        return Refusal(str(error), isinstance(error, BadRequest)) if isinstance(error, ClientError) else None

    @contextmanager
    def transaction(self) -> Iterator[None]:
        yield

    def clear(self) -> None:
        """Remove what was made for this connection."""
        for name in self._scratch:
            self._client.delete_table(f"{self._dataset}.{name}", retry=self._retry, timeout=_SECONDS, not_found_ok=True)

    def _own(self, name: str) -> str:
        own = f"{name}_{self._token}"
        self._scratch.add(own)
        return own

    def _job(self, statement: str, values: Sequence[Value]) -> bigquery.QueryJob:
        from google.cloud import bigquery

        parameters = [
            bigquery.ScalarQueryParameter(
                None,
                "INT64" if isinstance(value, int) else "TIMESTAMP" if isinstance(value, datetime) else "STRING",
                value,
            )
            for value in values
        ]
        config = bigquery.QueryJobConfig(default_dataset=self._dataset, query_parameters=parameters)
        named = _SCRATCH.sub(lambda found: self._own(found[0]), statement)
        # Without `job_retry=None` the driver tries for five minutes to begin a job where nobody is there any more.
        return self._client.query(named, job_config=config, retry=self._retry, timeout=_SECONDS, job_retry=None)

    def _result(self, job: bigquery.QueryJob) -> Any:
        """What it found; a job that failed where that is known to pass is begun again."""
        return job.result(retry=self._retry, timeout=None, job_retry=self._job_retry)


def _lines(rows: pa.Table, types: dict[str, str]) -> bytes:
    """Rows as JSON, one a line; numbers and JSON are texts that stand in it as they are."""
    columns = []
    for name in rows.column_names:
        values = rows.column(name).to_pylist()
        if types[name] in {"FLOAT", "FLOAT64", "JSON"}:
            values = [None if value is None else Raw(value.encode()) for value in values]
        columns.append(values)
    encode = msgspec.json.Encoder().encode
    names = rows.column_names
    return b"\n".join(encode(dict(zip(names, row, strict=True))) for row in zip(*columns, strict=True))
