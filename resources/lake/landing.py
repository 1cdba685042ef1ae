"""Where connectors' pages land: the lake's table `landing`, and `known`, the rows that they add up to.

A landing is one commit: pages, and where every table of its connector goes on from there. It is numbered, and written
as an overwrite of exactly that number, validated from the snapshot whose newest number was read: of two polls of one
connector one is refused, and a plan that is sent twice writes once. A row's stamp is fixed when it lands, above all
stamps before it, so the deltas that follow from a landing are always the same.

`known` is what the landings up to a mark add up to. The mark is a row of it, changed in the same commit: what lies
above it is to be pushed yet, again where a push was cut short.
"""

from __future__ import annotations

from copy import deepcopy
from datetime import date
from functools import partial, reduce
from operator import or_
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import functions as sf

from lakesync import hlc
from lakesync.connectors.polling import Comparison
from lakesync.connectors.seen import Seen
from lakesync.connectors.source import Cursor, SourceRow
from lakesync.exceptions import FlushError
from resources.lake.connection import brief, is_lost, lake_errors
from resources.lake.landed_rows import LANDING_SCHEMA, STAMPS_A_PART, Constants, LandedRows, Place, parts_landed
from resources.lake.tables import NAMES, LakeNames, read_version
from transforms import landed as law
from transforms.landed import PLACE, ROW, WHOLE

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from pyspark.sql import Column, DataFrame, Row, SparkSession

    from lakesync.connectors.source import Census, Page, Spread, Table

_LANDING = """
gateway string, connector string, day date COMMENT 'UTC day of the landing', landing bigint, table_name string,
kind string COMMENT 'row, gone, whole or place', page bigint COMMENT 'the first stamp of its page',
hlc bigint COMMENT 'the stamp of the delta that it makes', row_id string,
columns string COMMENT 'the row, or the place, as JSON', name string, value string
"""
_KNOWN = "gateway string, connector string, table_name string, row_id string, columns string"
_PROPERTIES = {
    "format-version": "2",
    "write.distribution-mode": "none",
    "write.spark.fanout.enabled": "true",
    "write.metadata.metrics.column.connector": "full",
    "write.metadata.metrics.column.table_name": "full",
    "write.merge.mode": "merge-on-read",
    "write.merge.isolation-level": "serializable",
    "write.merge.distribution-mode": "hash",
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "50",
    "commit.retry.num-retries": "10",
}
MARK = ""
"""The row id of a table's mark in `known`: no row of a source has it."""

_NOTHING = partial(sf.lit, False)


class Waiting(NamedTuple):
    """What landed of a table and was not pushed yet."""

    pages: Sequence[tuple[int, int]]
    """`(page, rows)`, in order."""
    claimed: Sequence[str]
    """The columns in which pages of these have all rows of a value."""


def landing_name(names: LakeNames = NAMES) -> str:
    """The full name, quoted, of the table of landings."""
    return f"`{names.catalogue}`.`{names.system}`.`landing`"


def known_name(names: LakeNames = NAMES) -> str:
    """The full name, quoted, of the table of the rows that landings add up to."""
    return f"`{names.catalogue}`.`{names.system}`.`known`"


def ensure_landing(spark: SparkSession, names: LakeNames = NAMES) -> None:
    """Make both tables where they are missing."""
    if spark.catalog.tableExists(known_name(names)):
        return
    properties = ", ".join(f"'{key}' = '{value}'" for key, value in _PROPERTIES.items())
    spark.sql(f"CREATE NAMESPACE IF NOT EXISTS `{names.catalogue}`.`{names.system}`")
    for name, columns, parts in (
        (landing_name(names), _LANDING, "gateway, connector, day"),
        (known_name(names), _KNOWN, "gateway, connector, table_name, bucket(4, row_id)"),
    ):
        spark.sql(
            f"CREATE TABLE IF NOT EXISTS {name} ({columns}) USING iceberg PARTITIONED BY ({parts}) "
            f"TBLPROPERTIES ({properties})"
        )


class LakeLanding:
    """The landing of one connector, for one poll or one replay."""

    def __init__(
        self,
        spark: SparkSession,
        connector: tuple[str, str, str],
        tables: Sequence[Table],
        now_ms: Callable[[], int],
        names: LakeNames = NAMES,
    ) -> None:
        """Args: connector: gateway, name and type; now_ms: the gateways' clock.

        Raises:
            LakeUnavailableError: Spark is gone.
        """
        self._spark = spark
        self._names = names
        self._gateway, self._connector, self._type = connector
        self._tables = {table.name: table for table in tables}
        self._now_ms = now_ms
        self._waiting: dict[str, Waiting] | None = None
        self._open()

    @property
    def client_id(self) -> str:
        """In whose name the connector's deltas are pushed."""
        return f"connector:{self._connector}"

    def cursor(self, table: str) -> Cursor | None:
        """The cursor of the last page that landed."""
        return self._place(table).cursor

    def counted_ms(self, table: str) -> int | None:
        """When a table's rows were last counted, or first read."""
        return self._place(table).counted_ms

    def land(self, pages: Sequence[Page]) -> None:
        """Keep pages, with the cursor of each table's last that has one, in one commit.

        What says nothing new is not kept, and where there is nothing else Spark is not asked.
        """
        # a copy, as what is noted of a landing that fails does not hold
        places = {table: msgspec.structs.replace(place, seen=deepcopy(place.seen)) for table, place in self._at()}
        news = [places[page.table].seen.news(page, self._identity(page.table)) for page in pages]
        for page in pages:
            if page.cursor is not None:
                places[page.table] = msgspec.structs.replace(places[page.table], cursor=dict(page.cursor))
        moved = any(place.cursor != self._place(table).cursor for table, place in places.items())
        if moved or any(page.rows or page.deleted or page.whole for page in news):
            self._commit(news, places)

    @lake_errors
    def land_spread(self, table: str, spread: Spread) -> int:
        """Keep all parts of a table, read by Spark's tasks at once, with their cursor, in one commit."""
        place = msgspec.structs.replace(self._place(table), cursor=dict(spread.cursor), seen=Seen())
        places = {**self._places, table: place}
        first = max(hlc.start_of(self._now_ms()), self._newest + 1)
        rows = LandedRows(Constants.of(self._gateway, self._connector, self._number + 1, first), first)
        parts = len(spread.pieces)
        numbers = self._spark.range(0, parts, 1, parts)
        landed = numbers.mapInArrow(parts_landed(rows.constants, table, first, spread.pieces), LANDING_SCHEMA)
        rows.skip(parts * STAMPS_A_PART)
        self._write(rows, places, landed, [table])
        mine = (sf.col("landing") == self._number) & (sf.col("kind") == ROW)
        return self._landed(table).where(mine).count()

    def note_count(self, tables: Collection[str]) -> None:
        """Remember that these tables were counted now."""
        now = self._now_ms()
        counted = {table: msgspec.structs.replace(self._place(table), counted_ms=now) for table in tables}
        if counted:
            self._commit([], {**self._places, **counted})

    @lake_errors
    def compare(self, table: str, census: Census) -> Comparison:
        """What a census has and is not known, and the other way round."""
        pieces = [pa.array(piece, pa.string()) for piece in census.values]
        there = pa.table({"row_id": pa.chunked_array(pieces, pa.string())})
        counted = self._spark.createDataFrame(there).distinct()
        rows = law.current(self.events(table, self.waiting(table))).persist()
        try:
            known = rows.count()
            if census.column is None:
                unknown = counted.join(rows, "row_id", "left_anti").select("row_id").toArrow()["row_id"].to_pylist()
                self._place(table).seen.forget(unknown)
                absent = rows.join(counted, "row_id", "left_anti")
            else:
                values = counted.withColumnRenamed("row_id", "value")
                absent = rows.join(values, law.field(census.column) == values["value"], "left_anti")
                unknown = []
            found = absent.toArrow().to_pylist()
        finally:
            rows.unpersist()
        decoded = [SourceRow(row["row_id"], msgspec.json.decode(row["columns"])) for row in found]
        return Comparison(known, decoded, sorted(unknown))

    def events(self, table: str, waiting: Waiting) -> DataFrame:
        """What became of a table's rows on pages that wait; see `transforms.landed.events`."""
        pages = waiting.pages
        chosen = sf.col("page").between(pages[0][0], pages[-1][0]) if pages else _NOTHING()
        known = self._known(table).where(sf.col("row_id") != MARK).select("row_id", "columns")
        return law.events(self._landed(table).where(chosen), known, self._identity(table), waiting.claimed)

    def history(self, table: str, until: date) -> DataFrame:
        """What became of a table's rows from the first landing to the end of a day, whatever was pushed."""
        landed = self._landed(table).where(sf.col("day") <= until)
        claimed = landed.where(sf.col("kind") == WHOLE).select("name").distinct().collect()
        nothing = self._known(table).where(_NOTHING()).select("row_id", "columns")
        return law.events(landed, nothing, self._identity(table), [row["name"] for row in claimed])

    def waiting(self, table: str) -> Waiting:
        """The pages of a table that landed since its mark; those of all tables are looked for at once."""
        if self._waiting is None:
            self._waiting = self._all_waiting()
        return self._waiting.get(table) or Waiting([], [])

    def _all_waiting(self) -> dict[str, Waiting]:
        of_marks = self._mine() & (sf.col("row_id") == MARK) & sf.col("table_name").isin(list(self._tables))
        found = self._spark.table(known_name(self._names)).where(of_marks).select("table_name", "columns").collect()
        marks = {row["table_name"]: int(row["columns"]) for row in found}
        since = [
            (sf.col("table_name") == table) & (sf.col("page") > marks.get(table, -1)) for table in sorted(self._tables)
        ]
        landed = self._spark.table(landing_name(self._names)).where(self._mine() & (sf.col("kind") != PLACE))
        rows, names = sf.count_if(sf.col("kind") == ROW).alias("rows"), sf.collect_set("name").alias("names")
        pages: dict[str, list[Row]] = {}
        for row in landed.where(reduce(or_, since)).groupBy("table_name", "page").agg(rows, names).collect():
            pages.setdefault(row["table_name"], []).append(row)
        return {
            table: Waiting(
                sorted((row["page"], row["rows"]) for row in mine),
                sorted({name for row in mine for name in row["names"]}),
            )
            for table, mine in pages.items()
        }

    @lake_errors
    def settle(self, table: str, rows: DataFrame, mark: int) -> None:
        """Bring `known` up to a page: `rows` are `transforms.landed.touched`."""
        marked = self._spark.createDataFrame([(MARK, str(mark))], "row_id string, columns string")
        name = f"landed_{abs(hash((self._gateway, self._connector, table)))}"
        rows.unionByName(marked).createOrReplaceTempView(name)
        where = f"k.gateway = '{self._gateway}' AND k.connector = '{self._connector}' AND k.table_name = '{table}'"
        merge = (
            f"MERGE INTO {known_name(self._names)} k USING {name} s ON {where} AND k.row_id = s.row_id "
            "WHEN MATCHED AND s.columns IS NULL THEN DELETE "
            "WHEN MATCHED AND s.columns <> k.columns THEN UPDATE SET columns = s.columns "
            "WHEN NOT MATCHED AND s.columns IS NOT NULL THEN INSERT (gateway, connector, table_name, row_id, columns) "
            f"VALUES ('{self._gateway}', '{self._connector}', '{table}', s.row_id, s.columns)"
        )
        try:
            self._spark.sql(merge).collect()
        except PySparkException as error:
            if is_lost(error):
                raise
            raise FlushError(
                f"what landed of {table} by connector {self._connector!r} is pushed, and could not be noted as known "
                f"({brief(error)}): the next poll pushes it again, which changes nothing"
            ) from error
        finally:
            self._spark.catalog.dropTempView(name)
        waiting = self.waiting(table)
        left = waiting._replace(pages=[each for each in waiting.pages if each[0] > mark])
        self._waiting = {**(self._waiting or {}), table: left}

    def _place(self, table: str) -> Place:
        return self._places.get(table) or Place(self._type)

    def _at(self) -> list[tuple[str, Place]]:
        """Where every table is."""
        return [(table, self._place(table)) for table in {**self._places, **self._tables}]

    @lake_errors
    def _open(self) -> None:
        ensure_landing(self._spark, self._names)
        # from here on, any other landing of the same number is a conflict
        self._snapshot = read_version(self._spark, landing_name(self._names)).snapshot_id
        mine = self._spark.table(landing_name(self._names)).where(self._mine())
        files = self._spark.table(f"{landing_name(self._names)}.files").where(
            (sf.col("partition.gateway") == self._gateway) & (sf.col("partition.connector") == self._connector)
        )
        newest = files.agg(
            sf.max("readable_metrics.landing.upper_bound").alias("landing"),
            sf.max("readable_metrics.hlc.upper_bound").alias("hlc"),
        ).collect()[0]
        self._number: int = newest["landing"] or 0
        self._newest: int = newest["hlc"] or 0
        self._places: dict[str, Place] = {}
        if self._number:
            told = mine.where((sf.col("landing") == self._number) & (sf.col("kind") == PLACE))
            for row in told.select("table_name", "columns").collect():
                place = msgspec.json.decode(row["columns"], type=Place)
                if place.type == self._type:
                    self._places[row["table_name"]] = place

    @lake_errors
    def _commit(self, pages: Sequence[Page], places: Mapping[str, Place]) -> None:
        first = max(hlc.start_of(self._now_ms()), self._newest + 1)
        rows = LandedRows(Constants.of(self._gateway, self._connector, self._number + 1, first), first)
        for page in pages:
            rows.add(page)
        self._write(rows, places, None, {page.table for page in pages})

    def _write(
        self, rows: LandedRows, places: Mapping[str, Place], more: DataFrame | None, tables: Collection[str]
    ) -> None:
        """Commit a landing: collected rows, further ones that Spark makes, and the places of every table."""
        for table, place in places.items():
            rows.place(table, place)
        name, number = landing_name(self._names), self._number + 1
        where = self._mine() & (sf.col("landing") == number) & (sf.col("day") == rows.constants.day)
        try:
            collected = self._spark.createDataFrame(rows.table()).coalesce(1)
            landed = collected if more is None else collected.unionByName(more)
            writer = self._new(landed, tables).writeTo(name)
            writer = writer.option("isolation-level", "serializable")
            if self._snapshot is not None:
                writer = writer.option("validate-from-snapshot-id", str(self._snapshot))
            writer.overwrite(where)
        except Exception as error:
            if not self._is_there(where, rows):
                raise FlushError(
                    f"landing {number} of connector {self._connector!r} was not written ({brief(error)}): another poll "
                    "of it may be under way; the next one goes on from the last landing"
                ) from error
        self._number, self._newest, self._places, self._waiting = number, rows.newest, dict(places), None

    def _is_there(self, where: Column, rows: LandedRows) -> bool:
        """Whether a commit whose answer was an error is in the table after all."""
        table = self._spark.table(landing_name(self._names))
        # the last row of a landing is a place, which is always written
        return bool(table.where(where).agg(sf.max("hlc").alias("hlc")).collect()[0]["hlc"] == rows.newest)

    def _new(self, landed: DataFrame, tables: Collection[str]) -> DataFrame:
        """Without rows as they are known, of tables that are read whole each time: those would fill the lake."""
        whole = [table for table in tables if table in self._tables and self._tables[table].counted]
        if not whole:
            return landed
        known = self._spark.table(known_name(self._names)).where(self._mine() & sf.col("table_name").isin(whole))
        same = ["table_name", "row_id", "columns"]
        return landed.join(known.select(*same), same, "left_anti").select(*landed.columns)

    def _mine(self) -> Column:
        return (sf.col("gateway") == self._gateway) & (sf.col("connector") == self._connector)

    def _landed(self, table: str) -> DataFrame:
        of_table = self._mine() & (sf.col("table_name") == table) & (sf.col("kind") != PLACE)
        return self._spark.table(landing_name(self._names)).where(of_table)

    def _known(self, table: str) -> DataFrame:
        return self._spark.table(known_name(self._names)).where(self._mine() & (sf.col("table_name") == table))

    def _identity(self, table: str) -> str | None:
        known = self._tables.get(table)
        return known.identity if known is not None else None
