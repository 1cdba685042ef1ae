"""Where a connector's pages land: the lake's table `landing`, and `known`, the rows that they add up to.

A landing is one commit: pages, and where every table of its connector goes on from there. It is numbered, and goes on
top of the snapshot whose newest number was read, or of a later one once it is read that nobody has landed since: of two
polls of one connector one is refused. A row's stamp is fixed when it lands, above all stamps before it, so the deltas
that follow from a landing are always the same.

`known` is what the landings up to a page add up to; it is brought up to the newest now and then, for what it lacks is
read from the landings themselves.
"""

from __future__ import annotations

from copy import deepcopy
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from lakehouse.landing.commits import commit_landing, places_told, write_parts, write_rows
from lakehouse.landing.comparing import Digests, compared
from lakehouse.landing.folding import Folding
from lakehouse.landing.reading import LandedTables
from lakehouse.landing.rows import STAMPS_A_PART, Constants, LandedRows, Place
from lakehouse.landing.tables import ConnectorTables, landing_name
from lakehouse.spark_errors import lake_errors
from lakehouse.table_definitions import NAMES, LakeNames
from lakesync import hlc
from lakesync.connectors.seen import Seen

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from pyspark.sql import SparkSession

    from lakesync.connectors.polling import Comparison
    from lakesync.connectors.source import Census, Cursor, Page, Spread, Table


class LakeLanding(LandedTables):
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
            As `LandedTables`.
        """
        gateway, name, self._type = connector
        super().__init__(ConnectorTables(spark, names, gateway, name), tables)
        self._now_ms = now_ms
        self._digests: dict[str, Digests] = {}
        told = lake_errors(places_told)(self._files, self._number)
        places = {table: msgspec.json.decode(place, type=Place) for table, place in told.items()}
        self._places = {table: place for table, place in places.items() if place.type == self._type}

    def cursor(self, table: str) -> Cursor | None:
        """The cursor of the last page that landed."""
        return self._place(table).cursor

    def counted_ms(self, table: str) -> int | None:
        """When a table's rows were last counted, or first read."""
        return self._place(table).counted_ms

    def land(self, pages: Sequence[Page]) -> None:
        """Keep pages, with the cursor of each table's last that has one, in one commit; nothing where all is as it was.

        Raises:
            FlushError: it was not written, or somebody else has polled this connector meanwhile.
            LakeUnavailableError: the catalogue is gone.
        """
        # a copy, as what is noted of a landing that fails does not hold
        places = {table: msgspec.structs.replace(place, seen=deepcopy(place.seen)) for table, place in self._at()}
        news = [self._news(places[page.table], page) for page in pages]
        for page in pages:
            if page.cursor is not None:
                places[page.table] = msgspec.structs.replace(places[page.table], cursor=dict(page.cursor))
        moved = any(place.cursor != self._place(table).cursor for table, place in places.items())
        if moved or any(page.rows or page.deleted or page.whole for page in news):
            self._commit(news, places)

    @lake_errors
    def land_spread(self, table: str, spread: Spread) -> int:
        """Keep all parts of a table, read and written by Spark's tasks at once, with their cursor, in one commit."""
        place = msgspec.structs.replace(self._place(table), cursor=dict(spread.cursor), seen=Seen())
        rows, first = self._rows()
        with self._in.opened(landing_name(self._in.names)) as landing:
            written = write_parts(self._in, landing, rows.constants, first, table, spread.pieces)
        rows.skip(len(spread.pieces) * STAMPS_A_PART)
        self._write(rows, {**self._places, table: place}, written)
        return int(pc.sum(written["rows"]).as_py() or 0)

    def note_count(self, tables: Collection[str]) -> None:
        """Remember that these tables were counted now."""
        now = self._now_ms()
        counted = {table: msgspec.structs.replace(self._place(table), counted_ms=now) for table in tables}
        if counted:
            self._commit([], {**self._places, **counted})

    @lake_errors
    def compare(self, table: str, census: Census) -> Comparison:
        """What a census has and is not known, and the other way round."""
        found = compared(Folding(self._landed(table), self._newest), census)
        self._place(table).seen.forget(found.unknown)
        return found

    def _news(self, place: Place, page: Page) -> Page:
        """Without rows that are as they were."""
        fresh = place.seen.news(page, self._identity(page.table))
        if not fresh.rows or not self._is_read_whole(page.table):
            return fresh
        if page.table not in self._digests:
            self._digests[page.table] = Digests(Folding(self._landed(page.table), self._newest))
        return self._digests[page.table].news(fresh)

    def _is_read_whole(self, table: str) -> bool:
        return table in self._tables and self._tables[table].counted

    def _place(self, table: str) -> Place:
        return self._places.get(table) or Place(self._type)

    def _at(self) -> list[tuple[str, Place]]:
        """Where every table is."""
        return [(table, self._place(table)) for table in {**self._places, **self._tables}]

    def _rows(self) -> tuple[LandedRows, int]:
        """The next landing, and its first stamp."""
        first = max(hlc.start_of(self._now_ms()), self._newest + 1)
        return LandedRows(Constants.of(self._in.gateway, self._in.connector, self._number + 1, first), first), first

    @lake_errors
    def _commit(self, pages: Sequence[Page], places: Mapping[str, Place]) -> None:
        rows, _ = self._rows()
        for page in pages:
            rows.add(page)
        self._write(rows, places)

    def _write(self, rows: LandedRows, places: Mapping[str, Place], more: pa.Table | None = None) -> None:
        """Commit a landing: collected rows, files of further ones, and the places of every table."""
        for table, place in places.items():
            rows.place(table, place)
        with self._in.opened(landing_name(self._in.names)) as landing:
            written = write_rows(self._in, landing, rows)
        files = written if more is None else pa.concat_tables([more, written])
        commit_landing(self._in, rows.constants, files, rows.newest)
        self._number, self._newest, self._places = rows.constants.landing, rows.newest, dict(places)
        self._plan_landing()
