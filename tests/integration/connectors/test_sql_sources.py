"""Postgres and MariaDB polled by SQL: late commits, deletes, types, and more rows than fit in memory."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import psycopg
import pymysql
import pytest

from lakesync.adapters.uri import BackendUri
from lakesync.connectors.base import probes_of
from lakesync.connectors.seen_rows import SeenRows
from lakesync.connectors.sql import mysql, postgres
from lakesync.connectors.sql import source as sql_source
from lakesync.model.errors import (
    AuthError,
    ConfigurationError,
    ForbiddenError,
    LakeSyncError,
)
from tests.backend_servers import mariadb_server
from tests.integration.connectors.sql_support import BY_CHANGE, Orders, order


@pytest.fixture
def in_postgres(own_database):
    made = Orders(postgres.reader, own_database, lambda: psycopg.connect(own_database))
    made.run(
        "CREATE TABLE orders (id bigint PRIMARY KEY, name text, price numeric(12, 2), paid boolean, tags text[],"
        " extra jsonb, day date, changed timestamptz NOT NULL)"
    )
    return made


@pytest.fixture
def in_mariadb(mariadb_uri):
    server, name = BackendUri.parse(mariadb_uri), f"own_{uuid.uuid4().hex[:12]}"

    def connect(database=name):
        return pymysql.connect(
            host=server.host, port=server.port, user=server.user, password=server.password, database=database
        )

    with connect(None) as sql:
        sql.cursor().execute(f"CREATE DATABASE {name}")
    made = Orders(mysql.reader, f"{mariadb_uri}/{name}", connect)
    made.run(
        "CREATE TABLE orders (id bigint PRIMARY KEY, name varchar(80), price decimal(12, 2), paid bool, day date,"
        " changed datetime(6) NOT NULL)"
    )
    return made


def test_in_postgres_a_late_commit_is_found_after_any_time(in_postgres):
    in_postgres.run(order(1, "2026-01-01 10:00+00"))
    with in_postgres.connect() as slow:
        slow.execute(order(2, "2026-01-01 10:01+00"))
        in_postgres.run(order(3, "2026-01-01 12:00+00"))
        assert in_postgres.poll(**BY_CHANGE, lookbackMs=0).error is None
        assert set(in_postgres.rows()) == {"1", "3"}
        in_postgres.run(order(4, "2026-01-01 13:00+00"))
        in_postgres.poll(**BY_CHANGE, lookbackMs=0)
        assert set(in_postgres.rows()) == {"1", "3", "4"}
        slow.commit()
    in_postgres.poll(**BY_CHANGE, lookbackMs=0)
    assert set(in_postgres.rows()) == {"1", "2", "3", "4"}
    assert in_postgres.poll(**BY_CHANGE, lookbackMs=0).error is None
    last = in_postgres.poll(**BY_CHANGE, lookbackMs=0).tables[0]
    assert last.rows == 1, "once no transaction is late, polls read from the newest row"
    in_postgres.poll(**BY_CHANGE, query="SELECT * FROM orders WHERE id > 2")
    assert in_postgres.landing.landings > 0


def test_of_several_rows_with_one_id_the_one_with_the_highest_cursor_counts(in_postgres):
    in_postgres.run(order(1, "2026-01-01 10:00+00"))
    twice = "SELECT id, name || n AS name, changed + n * interval '1 s' AS changed FROM orders, generate_series(1, 2) n"
    seen, landed = SeenRows(), []
    for _ in range(2):
        with in_postgres.source(twice, **BY_CHANGE) as source:
            (page,) = source.changes("orders", None)
        landed.append([row.columns["name"] for row in seen.drop_unchanged(page, None).rows])
    assert landed == [["lamp2"], []]


def test_postgres_types_are_kept_and_numbers_that_json_would_round_are_rejected(in_postgres):
    in_postgres.run(
        "INSERT INTO orders VALUES (1, 'a \"b\" %s ?', 19.90, true, '{x,y}', '{\"deep\": [1, null]}', '2026-02-03',"
        " '2026-01-01 10:00:00.5+02')"
    )
    in_postgres.poll(**BY_CHANGE)
    assert in_postgres.rows()["1"] == {
        "id": 1,
        "name": 'a "b" %s ?',
        "price": 19.9,
        "paid": True,
        "tags": ["x", "y"],
        "extra": {"deep": [1, None]},
        "day": "2026-02-03",
        "changed": "2026-01-01T08:00:00.500000Z",
    }
    with in_postgres.source(**BY_CHANGE) as source:
        schema = source.tables[0].schema()
    assert schema.types == {
        "id": "number",
        "name": "string",
        "price": "number",
        "paid": "boolean",
        "tags": "json",
        "extra": "json",
        "day": "string",
        "changed": "string",
    }
    in_postgres.run(order(2**53 + 1, "2026-01-02"))
    error = in_postgres.poll(**BY_CHANGE).error
    assert isinstance(error, ConfigurationError)
    assert "cast it to text" in str(error)
    as_text = "SELECT id::text AS id, name, changed FROM orders WHERE extra ? 'deep' OR name LIKE 'l%'"
    assert in_postgres.poll(**BY_CHANGE, query=as_text).error is None
    assert str(2**53 + 1) in in_postgres.rows()


TIMES = {
    "date": ["infinity", "-infinity", "20000-01-01"],
    "time": ["24:00:00"],
    "timetz": ["24:00:00+00"],
    "timestamp": ["infinity", "0044-03-15 00:00:00 BC"],
    "timestamptz": ["infinity", "20000-01-01 00:00:00+00"],
    "interval": ["100000000 years", "1 mon", "30 days", "1 day 02:00:00"],
}


@pytest.mark.parametrize(("kind", "text"), [(kind, text) for kind, texts in TIMES.items() for text in texts])
def test_a_time_of_postgres_that_python_cannot_represent_is_read_as_its_text(in_postgres, kind, text):
    in_postgres.run(f"ALTER TABLE orders ADD COLUMN at {kind}, ADD COLUMN ats {kind}[]", order(1, "2026-01-01"))
    in_postgres.run(f"UPDATE orders SET at = '{text}', ats = ARRAY['{text}'::{kind}]", order(2, "2026-01-02"))
    assert in_postgres.poll(**BY_CHANGE).error is None
    assert (in_postgres.rows()["1"]["at"], in_postgres.rows()["1"]["ats"]) == (text, [text])
    assert in_postgres.rows()["2"]["at"] is None


def test_an_infinite_time_in_the_cursor_column_does_not_end_the_polls(in_postgres, monkeypatch):
    in_postgres.run(order(1, "2026-01-01"), order(2, "infinity"))
    in_postgres.poll(**BY_CHANGE, lookbackMs=0)
    in_postgres.run(order(3, "2026-01-02"))
    assert in_postgres.poll(**BY_CHANGE, lookbackMs=0).error is None
    assert set(in_postgres.rows()) == {"1", "2", "3"}
    monkeypatch.setattr(sql_source, "PARALLEL_ROWS", 3)
    with in_postgres.source(**BY_CHANGE) as source:
        assert source.split("orders", None).cursor["at"] is None


@pytest.mark.parametrize("encoding", ["SQL_ASCII", "LATIN1"])
def test_texts_of_a_postgres_database_with_another_encoding_are_read(own_database, encoding):
    name = f"own_{uuid.uuid4().hex[:12]}"
    with psycopg.connect(own_database, autocommit=True) as sql:
        sql.execute(f"CREATE DATABASE {name} ENCODING '{encoding}' TEMPLATE template0 LOCALE 'C'")
    uri = f"{own_database.rpartition('/')[0]}/{name}"
    made = Orders(postgres.reader, uri, lambda: psycopg.connect(uri, client_encoding="UTF8"))
    made.run("CREATE TABLE orders (id text, name text, changed timestamptz, extra json)")
    made.run("""INSERT INTO orders VALUES ('é', 'ü', '2026-01-01', '{"k": "ü"}')""")
    assert made.poll(**BY_CHANGE).error is None
    assert (made.rows()["é"]["name"], made.rows()["é"]["extra"]) == ("ü", {"k": "ü"})
    if encoding == "SQL_ASCII":
        made.run(r"""INSERT INTO orders VALUES ('b', E'\xfc', '2026-01-02', E'{"k": "\xfc"}')""")
        error = made.poll(**BY_CHANGE).error
        assert isinstance(error, ConfigurationError)
        assert "client_encoding" in str(error)
        assert made.poll(**BY_CHANGE, uri=f"{uri}?client_encoding=LATIN1").error is None
        assert (made.rows()["b"]["name"], made.rows()["b"]["extra"]) == ("ü", {"k": "ü"})


def test_a_lone_surrogate_in_json_of_postgres_becomes_a_replacement_character(in_postgres):
    in_postgres.run("ALTER TABLE orders ALTER COLUMN extra TYPE json", order(1, "2026-01-01"))
    in_postgres.run(r"""UPDATE orders SET extra = '{"cut": "a\ud83d", "whole": "\ud83d\ude00"}'""")
    assert in_postgres.poll(**BY_CHANGE).error is None
    assert in_postgres.rows()["1"]["extra"] == {"cut": "a\ufffd", "whole": "\U0001f600"}


@pytest.mark.parametrize(
    ("database", "kind", "value"),
    [
        ("in_postgres", "char(10)", "'abc'"),
        ("in_postgres", "numeric(10, 2)", "1"),
        ("in_postgres", "timestamptz", "'2026-01-01 10:00+00'"),
        ("in_postgres", "bytea", r"'\x00ff'"),
        ("in_postgres", "boolean", "true"),
        ("in_mariadb", "binary(3)", "x'00ff01'"),
        ("in_mariadb", "decimal(10, 2)", "1"),
        ("in_mariadb", "datetime", "'2026-01-01 10:00'"),
    ],
)
def test_a_row_is_found_by_its_id_however_the_database_writes_that_as_text(database, kind, value, request):
    orders = request.getfixturevalue(database)
    orders.run(f"CREATE TABLE keyed (id {kind} PRIMARY KEY)", f"INSERT INTO keyed VALUES ({value})")
    with orders.source("SELECT * FROM keyed", **BY_CHANGE) as source:
        (listed,) = [row_id for ids in source.census("orders").values for row_id in ids]
        (row,) = [row for page in source.read("orders", [listed, "other"]) for row in page.rows]
        assert row.row_id == listed
        assert source.find_deleted("orders", [row, row._replace(row_id="other")]) == {"other"}


@pytest.mark.parametrize("strategy", [{"type": "diff"}, BY_CHANGE])
def test_a_large_table_is_divided_only_if_all_of_its_rows_land(in_postgres, strategy, monkeypatch):
    monkeypatch.setattr(sql_source, "PARALLEL_ROWS", 2)
    in_postgres.run(order(1, "2026-01-01"), order(2, "2026-01-01"))
    with in_postgres.source(**strategy) as source:
        cursor = source.split("orders", None).cursor
        assert source.split("orders", cursor) is None
        assert source.split("orders", {**cursor, "query": "SELECT 1"}) is not None


@pytest.mark.parametrize("database", ["in_postgres", "in_mariadb"])
def test_a_whole_table_is_compared_in_parts_and_deletes_are_found(database, request):
    orders = request.getfixturevalue(database)
    many = ", ".join(f"({number}, 'n{number}', 1.5, '2026-01-01')" for number in range(6_000))
    orders.run(f"INSERT INTO orders (id, name, price, changed) VALUES {many}")
    first = orders.poll(type="diff", budget_bytes=100_000).tables[0]
    assert first.error is None
    assert (first.rows, len(orders.rows())) == (6_000, 6_000)
    assert first.landings >= 2, "the whole table is never in memory"
    before = len(orders.landing.changes)
    orders.run(
        "DELETE FROM orders WHERE id = 7", "UPDATE orders SET name = 'other' WHERE id = 8", order(99_999, "2026-01-02")
    )
    orders.poll(type="diff")
    changes = [(change.op, change.row_id, dict(change.columns)) for _, change in orders.landing.changes[before:]]
    assert sorted(changes)[0::2] == [("DELETE", "7", {}), ("UPDATE", "8", {"name": "other"})]
    assert len(changes) == 3
    orders.run("DELETE FROM orders WHERE id > 100")
    refused = orders.poll(type="diff").error
    assert refused is not None
    assert refused.code == "CENSUS_REFUSED"


def test_in_mysql_the_lookback_finds_late_commits_and_types_are_kept(in_mariadb):
    in_mariadb.run(order(1, "2026-01-01 10:00:00.25"))
    with in_mariadb.connect() as slow:
        slow.cursor().execute(order(2, "2026-01-01 09:59:30", "50 % 'off'".replace("'", "''")))
        in_mariadb.poll(**BY_CHANGE, lookbackMs=60_000)
        assert set(in_mariadb.rows()) == {"1"}
        slow.commit()
    in_mariadb.poll(**BY_CHANGE, lookbackMs=60_000)
    assert in_mariadb.rows() == {
        "1": {
            "id": 1,
            "name": "lamp",
            "price": 0.1,
            "paid": None,
            "day": None,
            "changed": "2026-01-01T10:00:00.250000",
        },
        "2": {"id": 2, "name": "50 % 'off'", "price": 0.1, "paid": None, "day": None, "changed": "2026-01-01T09:59:30"},
    }
    assert in_mariadb.poll(**BY_CHANGE, query="SELECT * FROM orders WHERE name LIKE '50 %'").error is None


@pytest.mark.parametrize("time", ["02:00:00", "-26:00:00", "838:59:59", "00:00:00.500000"])
def test_a_time_of_mysql_is_read_as_the_database_writes_it(in_mariadb, time):
    in_mariadb.run(order(1, "2026-01-01 10:00:00"))
    in_mariadb.poll(**BY_CHANGE, query=f"SELECT *, CAST('{time}' AS TIME({6 if '.' in time else 0})) t FROM orders")
    assert in_mariadb.rows()["1"]["t"] == time


def test_in_mysql_a_late_commit_is_found_with_the_process_privilege(in_mariadb):
    def stamped(number):
        return f"INSERT INTO orders (id, name, changed) VALUES ({number}, 'lamp', NOW(6))"

    in_mariadb.run(stamped(1))
    with in_mariadb.connect() as slow:
        slow.cursor().execute(stamped(2))
        in_mariadb.run(stamped(3))
        in_mariadb.poll(**BY_CHANGE, lookbackMs=0)
        assert set(in_mariadb.rows()) == {"1", "3"}
        slow.commit()
    in_mariadb.poll(**BY_CHANGE, lookbackMs=0)
    assert set(in_mariadb.rows()) == {"1", "2", "3"}
    name, place = in_mariadb.uri.rpartition("/")[2], in_mariadb.uri.rpartition("@")[2]
    with in_mariadb.connect() as sql, pymysql.connect(host=sql.host, port=sql.port, user="root") as owner:
        owner.cursor().execute("CREATE OR REPLACE USER reader IDENTIFIED BY 'x'")
        owner.cursor().execute(f"GRANT SELECT ON {name}.* TO reader")
    in_mariadb.run(order(4, "2036-01-01"))
    assert in_mariadb.poll(**BY_CHANGE, lookbackMs=0, uri=f"mysql://reader:x@{place}").error is None
    assert set(in_mariadb.rows()) == {"1", "2", "3", "4"}, (
        "without that privilege, only the lookback finds late commits"
    )


@pytest.mark.usefixtures("mariadb_uri")  # which is skipped if MariaDB is not installed
def test_in_mysql_the_age_of_a_transaction_covers_a_change_of_the_clock():
    zone, minute = ZoneInfo("Europe/Berlin"), timedelta(minutes=1)
    changes = [datetime(2026, 3, 29, 1, tzinfo=UTC), datetime(2026, 10, 25, 1, tzinfo=UTC)]
    with mariadb_server(str(zone)) as server, pymysql.connect(host="127.0.0.1", port=server.port, user="root") as sql:
        cursor = sql.cursor()
        cursor.execute("SET time_zone = '+00:00'")

        def age(start, now):
            cursor.execute("SET timestamp = %s", [now.timestamp()])
            local = start.astimezone(zone).replace(tzinfo=None)
            cursor.execute(f"SELECT {mysql._AGE_SQL} FROM (SELECT CAST(%s AS DATETIME) trx_started) started", [local])
            return timedelta(seconds=cursor.fetchone()[0])

        for change in changes:
            for before in range(-200, 200, 10):
                for old in (0, 20, 90, 600):
                    start = change + before * minute
                    found = age(start, start + old * minute)
                    assert old * minute <= found <= (old + 60) * minute, (start, old, found)
                    if not 0 <= before < 120:  # where it is not certain
                        assert found == old * minute, (start, old, found)


def asked(orders, query="SELECT * FROM orders", uri=None):
    """The answers or errors of the probes of `lakesync connectors test`."""
    results = {}
    with orders.source(query, uri, **BY_CHANGE) as source:
        for probe in probes_of(source):
            try:
                results[probe.name] = probe.run()
            except LakeSyncError as error:
                results[probe.name] = f"{error.code}: {error}"
    return results


def test_probes_check_user_clock_permission_and_a_page(in_postgres, in_mariadb):
    for database in (in_postgres, in_mariadb):
        results = asked(database)
        assert results["credentials"] == "connected"
        assert "agrees with this machine's" in results["clock"]
        assert results["orders"].startswith("readable, with the columns id, name")
        assert results["orders"].endswith("; it has no rows")
        assert "has no column 'changed': it has id" in asked(database, "SELECT id FROM orders")["orders"]
        assert asked(database, "SELECT * FROM nothing")["orders"].startswith("CONFIGURATION_ERROR: ")
    twice = "SELECT orders.*, 1 AS n, 2 AS n FROM orders"
    assert "has several columns 'n': name each in its SELECT, with AS" in asked(in_postgres, twice)["orders"]
    in_postgres.run("CREATE ROLE stranger LOGIN")
    stranger = in_postgres.uri.replace("postgres:postgres@", "stranger@")
    assert asked(in_postgres, uri=stranger)["orders"].startswith("FORBIDDEN: Postgres denies permission")
    place = in_mariadb.uri.rpartition("@")[2]
    assert asked(in_mariadb, uri=f"mysql://nobody:x@{place}")["credentials"].startswith("AUTH_ERROR: MySQL rejects")


@pytest.mark.parametrize(
    ("user", "query", "error", "says"),
    [
        (None, "SELECT nothing FROM orders", ConfigurationError, "correct the connector's query"),
        (None, "SELECT name, changed FROM orders", ConfigurationError, "correct the connector's query"),
        ("stranger:x", "SELECT * FROM orders", ForbiddenError, "grant the user SELECT"),
        ("nobody:x", "SELECT * FROM orders", AuthError, "check the user"),
    ],
)
def test_the_error_names_the_invalid_setting(in_mariadb, user, query, error, says):
    in_mariadb.run(order(1, "2026-01-01"), "CREATE OR REPLACE USER stranger IDENTIFIED BY 'x'")
    place = in_mariadb.uri.rpartition("@")[2]
    found = in_mariadb.poll(**BY_CHANGE, uri=f"mysql://{user}@{place}" if user else None, query=query).error
    assert type(found) is error
    assert says in str(found)
