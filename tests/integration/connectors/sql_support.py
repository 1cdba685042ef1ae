"""A polled database with one table, and the target of its pages."""

from __future__ import annotations

from contextlib import closing, contextmanager

from lakesync.connectors.base import ConnectorConfig
from lakesync.connectors.host_policy import HostPolicy
from lakesync.connectors.sql import source as sql_source
from lakesync.testing.landing import MemoryLanding, poll

HERE = HostPolicy(("127.0.0.1", "localhost"))


class Orders:
    """A database with a table `orders`, and the target of its polls."""

    def __init__(self, reader, uri, connect, settings=None):
        self.reader, self.uri, self.connect = reader, uri, connect
        self.settings = settings
        self.landing = None

    def run(self, *statements):
        with self.connect() as sql:
            for statement in statements:
                sql.cursor().execute(statement)
            sql.commit()

    @contextmanager
    def source(self, query="SELECT * FROM orders", uri=None, **strategy):
        table = {"table": "orders", "query": query, "strategy": strategy}
        settings = self.settings or {"connectionString": uri or self.uri}
        config = ConnectorConfig("gw", "db", "sql", settings, {"tables": [table]}, hosts=HERE)
        with closing(sql_source.SqlSource(self.reader, config)) as source:
            yield source

    def poll(self, *, budget_bytes=1 << 20, query="SELECT * FROM orders", uri=None, **strategy):
        with self.source(query, uri, **strategy) as source:
            self.landing = self.landing or MemoryLanding(source.tables)
            return poll(source, self.landing, budget_bytes=budget_bytes)

    def rows(self):
        return self.landing.rows["orders"]


def order(number, changed, name="lamp", table="orders (id, name, price, changed)"):
    return f"INSERT INTO {table} VALUES ({number}, '{name}', 0.10, '{changed}')"


BY_CHANGE = {"type": "cursor", "cursorColumn": "changed"}
