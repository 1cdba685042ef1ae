"""BigQuery adapter: it writes a batch by a load job into a scratch table, then one atomic MERGE from there.

`registry.open_adapter` creates it for `bigquery:` URIs. `SqlAdapter` has the logic that all SQL databases share: it
stores *deltas* (changes of rows), *destination tables* (the current rows), and *marks*, which say how far the lake's
deltas were copied here. It uses a database through the protocols `Executor` and `Connection`, and takes the SQL that
differs from a `Dialect`; `lakesync.adapters.sql.backend` documents their methods and attributes. A *scratch table* is
temporary: rows are loaded into it, and merged from there into others. The *kind* of a column is its type in LakeSync.

The adapter uses no transactions over several statements. Rows are written first, then the mark, and each step can be
repeated. So a crash repeats work and loses none. Every call starts jobs, which take seconds: use the adapter for
batches, not for single rows.

Needs google-cloud-bigquery: `pip install 'lakesync[bigquery]'`. Tested on an emulator.
"""

from __future__ import annotations

import io
import re
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Raw

from lakesync.adapters.sql import Column, Connection, Dialect, Kind, SqlAdapter, StatementError, Value
from lakesync.adapters.uri import BackendUri
from lakesync.model.errors import AdapterError, ConfigurationError, extra
from lakesync.model.secrets import without_password

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
"""Kind of column → BigQuery's type; other kinds are STRING."""
_OPTIONS = frozenset({"location", "endpoint"})
"""Options of the URI."""
_SCRATCH = re.compile(r"\blakesync_(?:incoming|rows|keys|letters)\b")
"""Names of the scratch tables that modules of `adapters.sql` use. Each connection appends its own suffix."""
_REQUEST_SECONDS = 60.0
"""Timeout of an HTTP request."""
_RETRY_SECONDS = 60.0
"""Seconds after the first attempt during which a failed request is repeated."""
_JOB_SECONDS = 300.0
"""Timeout of a job. BigQuery cancels a job that takes longer."""


class BigQueryAdapter(SqlAdapter):
    """Adapter for one dataset."""

    def __init__(self, uri: str) -> None:
        """Create the adapter; it connects on the first call.

        Args:
            uri: `bigquery://PROJECT/DATASET?location=EU`. `endpoint=…` addresses an emulator, without credentials.

        Raises:
            ConfigurationError: the URI names no dataset, or the driver is not installed.
        """
        super().__init__(BigQueryExecutor(uri), BigQueryDialect())


class BigQueryDialect(Dialect):
    """BigQuery's SQL."""

    has_transactions = False
    """Several statements cannot be committed together."""
    ignores_case_of_columns = True
    """Names that differ only in case name one column."""

    def column_type(self, kind: Kind) -> str:
        """Return BigQuery's type for a kind; strings compare by code point."""
        return _TYPES.get(kind, "STRING")

    def create_scratch(self, name: str, columns: Sequence[Column], key: Sequence[str]) -> Sequence[str]:  # noqa: ARG002
        """Create an ordinary table. The connection gives it a name of its own and drops it at its end.

        A table that a crash leaves expires after a day.
        """
        definitions = ", ".join(f"{column.name} {self.column_type(column.kind)}" for column in columns)
        expiry = "expiration_timestamp = TIMESTAMP_ADD(CURRENT_TIMESTAMP(), INTERVAL 1 DAY)"
        return [f"CREATE OR REPLACE TABLE {name} ({definitions}) OPTIONS ({expiry})"]

    def merge_statement(
        self, table: str, scratch: str, columns: Sequence[str], key: Sequence[str], update: Sequence[str]
    ) -> str:
        """Return a MERGE statement.

        Args:
            table: the table to merge into.
            scratch: the scratch table, or a query in parentheses, with the rows.
            columns: the columns of these rows.
            key: the columns by which a row is identified.
            update: the columns to replace in existing rows; empty leaves existing rows unchanged.
        """
        is_same = " AND ".join(f"t.{column} = s.{column}" for column in key)
        assignments = ", ".join(f"{column} = s.{column}" for column in update)
        return (
            f"MERGE INTO {table} t USING {scratch} s ON {is_same}"
            + (f" WHEN MATCHED THEN UPDATE SET {assignments}" if assignments else "")
            + f" WHEN NOT MATCHED THEN INSERT ({', '.join(columns)})"
            + f" VALUES ({', '.join(f's.{column}' for column in columns)})"
        )

    def checksum_expression(self, text: str) -> str:
        """Return the first 32 bits of the text's MD5 as a number. Every dialect computes the same checksum."""
        return f"CAST(CONCAT('0x', SUBSTR(TO_HEX(MD5({text})), 1, 8)) AS INT64)"

    def text_expression(self, column: Column) -> str:
        """Cast to text; JSON is serialised."""
        if column.kind == "json":
            return f"TO_JSON_STRING({column.name})"
        return f"CAST({column.name} AS STRING)"

    def integer_division(self, number: str, by: int) -> str:
        """Use DIV, because `/` returns fractions."""
        return f"DIV({number}, {by})"

    def quote(self, name: str) -> str:
        """Quote with backticks."""
        return f"`{name}`"

    def create_table(
        self,
        name: str,
        columns: Sequence[Column],
        key: Sequence[str],
        indexes: Mapping[str, str] | None = None,  # noqa: ARG002
    ) -> Sequence[str]:
        """Create a table clustered by its key; BigQuery has no indexes."""
        definitions = ", ".join(self.column_definition(column) for column in columns)
        return [f"CREATE TABLE IF NOT EXISTS {name} ({definitions}) CLUSTER BY {', '.join(key)}"]

    def lookup_index(self, column: Column) -> str | None:  # noqa: ARG002
        """Return None: BigQuery has no indexes."""
        return None

    def column_definition(self, column: Column) -> str:
        """Put the default before NOT NULL, and mark a JSON default as JSON."""
        json = "JSON " if column.kind == "json" else ""
        default = f" DEFAULT {json}{column.default}" if column.default is not None else ""
        not_null = " NOT NULL" if column.required else ""
        return f"{column.name} {self.column_type(column.kind)}{default}{not_null}"


class BigQueryExecutor:
    """`Executor` with one client of the driver, which all threads share. A connection only has scratch tables."""

    def __init__(self, uri: str) -> None:
        """Check the URI and the driver.

        Args:
            uri: `bigquery://PROJECT/DATASET`.

        Raises:
            ConfigurationError: the URI names no dataset, or the driver is not installed.
        """
        with extra("bigquery", "BigQuery needs its driver"):
            from google.api_core.exceptions import GoogleAPIError
            from google.auth.exceptions import GoogleAuthError
            from google.cloud import bigquery
            from requests import RequestException
        address = BackendUri.parse(uri, _OPTIONS)
        self._project, self._dataset = address.host, address.path
        if not self._project or not self._dataset or "/" in self._dataset:
            raise ConfigurationError(f"{without_password(uri)!r} names no dataset: write bigquery://PROJECT/DATASET")
        self._driver = bigquery
        self._errors = (GoogleAPIError, GoogleAuthError, RequestException, TimeoutError)
        self._options = address.options
        self._client: bigquery.Client | None = None

    @contextmanager
    def connect(self) -> Iterator[Connection]:
        """Yield a connection, and drop its scratch tables afterwards."""
        try:
            if self._client is None:
                self._client = self._create_client()
            connection = _BigQueryConnection(self._client, f"{self._project}.{self._dataset}")
            try:
                yield connection
            finally:
                connection.clear()
        except self._errors as error:
            reason = f"a job did not end within {_JOB_SECONDS:.0f} s" if isinstance(error, TimeoutError) else error
            raise AdapterError(
                f"BigQuery dataset {self._dataset!r} of project {self._project!r} failed: {reason}"
            ) from error

    def close(self) -> None:
        """Close the client."""
        if self._client is not None:
            self._client.close()  # type: ignore[no-untyped-call]

    def _create_client(self) -> bigquery.Client:
        """Return a client of the driver; for an emulator one without credentials."""
        arguments: dict[str, Any] = {"project": self._project, "location": self._options.get("location")}
        if "endpoint" in self._options:
            from google.auth.credentials import AnonymousCredentials

            arguments |= {
                "credentials": AnonymousCredentials(),  # type: ignore[no-untyped-call]
                "client_options": {"api_endpoint": self._options["endpoint"]},
            }
        return self._driver.Client(**arguments)


class _BigQueryConnection:
    """`Connection` that runs each statement as a job."""

    def __init__(self, client: bigquery.Client, dataset: str) -> None:
        from google.cloud.bigquery import retry

        self._client = client
        self._dataset = dataset
        self._suffix = uuid.uuid4().hex[:12]
        self._scratch: set[str] = set()
        self._retry = retry.DEFAULT_RETRY.with_timeout(_RETRY_SECONDS)
        self._job_retry = retry.DEFAULT_JOB_RETRY.with_timeout(_RETRY_SECONDS)

    def execute(self, statement: str, values: Sequence[Value] = ()) -> int:
        job = self._job(statement, values)
        self._result(job)  # waits until the job has ended
        return int(job.num_dml_affected_rows or 0)

    def query(self, statement: str, values: Sequence[Value] = ()) -> list[tuple[Any, ...]]:
        return [tuple(row.values()) for row in self._result(self._job(statement, values))]

    def query_arrow(self, statement: str, values: Sequence[Value], schema: pa.Schema) -> pa.Table:
        found = self._result(self._job(statement, values))
        return found.to_arrow(create_bqstorage_client=False).cast(schema)

    def column_names(self, table: str) -> list[str]:
        from google.api_core.exceptions import NotFound

        try:
            found = self._client.get_table(f"{self._dataset}.{table}", retry=self._retry, timeout=_REQUEST_SECONDS)
        except NotFound:
            return []
        return [field.name for field in found.schema]

    def load_scratch(self, table: str, rows: pa.Table) -> None:
        from google.cloud import bigquery

        assert _SCRATCH.fullmatch(table), "statements would not use this connection's table"
        config = bigquery.LoadJobConfig(
            source_format=bigquery.SourceFormat.NEWLINE_DELIMITED_JSON,
            write_disposition=bigquery.WriteDisposition.WRITE_APPEND,
            job_timeout_ms=int(_JOB_SECONDS * 1000),
        )
        name = self._scratch_name(table)
        schema = self._client.get_table(f"{self._dataset}.{name}", retry=self._retry, timeout=_REQUEST_SECONDS).schema
        job = self._client.load_table_from_file(
            io.BytesIO(_lines(rows, {field.name: field.field_type for field in schema})),
            f"{self._dataset}.{name}",
            job_config=config,
            rewind=True,
            num_retries=3,
            timeout=_REQUEST_SECONDS,
        )
        job.result(retry=self._retry, timeout=_JOB_SECONDS + _REQUEST_SECONDS)

    def statement_error(self, error: BaseException) -> StatementError | None:
        from google.api_core.exceptions import BadRequest, ClientError

        return StatementError(str(error), isinstance(error, BadRequest)) if isinstance(error, ClientError) else None

    @contextmanager
    def transaction(self) -> Iterator[None]:
        yield  # nothing: statements commit one by one, see the module's docstring

    def clear(self) -> None:
        """Drop the scratch tables of this connection."""
        for name in self._scratch:
            self._client.delete_table(
                f"{self._dataset}.{name}", retry=self._retry, timeout=_REQUEST_SECONDS, not_found_ok=True
            )

    def _scratch_name(self, name: str) -> str:
        """Return this connection's name for a scratch table, and remember to drop that table."""
        own_name = f"{name}_{self._suffix}"
        self._scratch.add(own_name)
        return own_name

    def _job(self, statement: str, values: Sequence[Value]) -> bigquery.QueryJob:
        """Start a statement as a job, with this connection's scratch tables in place of those that it names."""
        from google.cloud import bigquery

        parameters = [
            bigquery.ScalarQueryParameter(
                None,
                "INT64" if isinstance(value, int) else "TIMESTAMP" if isinstance(value, datetime) else "STRING",
                value,
            )
            for value in values
        ]
        config = bigquery.QueryJobConfig(
            default_dataset=self._dataset, query_parameters=parameters, job_timeout_ms=int(_JOB_SECONDS * 1000)
        )
        renamed = _SCRATCH.sub(lambda name: self._scratch_name(name[0]), statement)
        # Without `job_retry=None` the driver tries for five minutes to start a job on an unreachable server.
        return self._client.query(
            renamed, job_config=config, retry=self._retry, timeout=_REQUEST_SECONDS, job_retry=None
        )

    def _result(self, job: bigquery.QueryJob) -> Any:
        """Return a job's result; a job that failed for a transient reason is started again."""
        return job.result(retry=self._retry, timeout=_JOB_SECONDS + _REQUEST_SECONDS, job_retry=self._job_retry)


def _lines(rows: pa.Table, types: dict[str, str]) -> bytes:
    """Encode rows as newline-delimited JSON. Numbers and JSON are inserted as they are.

    Args:
        rows: the rows; numbers and JSON are texts.
        types: column → BigQuery's type in the scratch table.
    """
    columns = []
    for name in rows.column_names:
        values = rows.column(name).to_pylist()
        if types[name] in {"FLOAT", "FLOAT64", "JSON"}:
            values = [None if value is None else Raw(value.encode()) for value in values]
        columns.append(values)
    encode = msgspec.json.Encoder().encode
    names = rows.column_names
    return b"\n".join(encode(dict(zip(names, row, strict=True))) for row in zip(*columns, strict=True))
