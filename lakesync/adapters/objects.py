"""Deltas in an object store: one object a batch, written once, named so that a reader knows what it may leave out.

`PREFIX/GATEWAY/DAY/ARRIVALS-HLCS.BATCH.parquet`: day of the first arrival (UTC), least and greatest arrival, least and
greatest hlc (16 hex digits each), batch id. Objects are never changed, so any tool may read along. Objects with other
names are left alone.

A store of batches does not know single deltas: one that comes in two batches is held twice and, in order of arrival,
given twice; merging does not mind. Reading rows by id looks into every object of a gateway.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from datetime import UTC, datetime
from typing import Literal, NamedTuple
from urllib.parse import quote

from lakesync import hlc
from lakesync.adapters.arrow import decode_parquet, encode_parquet, held_in_parquet, require_pyarrow
from lakesync.adapters.base import (
    DeltaBatch,
    DeltaPage,
    DeltaQuery,
    Held,
    Order,
    Position,
    StoredDelta,
    position_of,
)
from lakesync.adapters.envelope import decode_envelope, encode_envelope
from lakesync.adapters.object_store import LakeAdapter
from lakesync.adapters.recent import Recent
from lakesync.adapters.selection import held, merged, selected
from lakesync.exceptions import ValidationError
from lakesync.lww import RowState

FlushFormat = Literal["parquet", "json"]
DELTAS_PREFIX = "deltas"
_KEY = re.compile(
    r"(?P<gateway>[^/]+)/\d{4}-\d\d-\d\d/(?P<spans>[0-9a-f]{16}(-[0-9a-f]{16}){3})\.[^/]+\.(?P<ending>parquet|json)"
)


class _Named(NamedTuple):
    """An object, as its key tells of it."""

    key: str
    gateway: str
    arrivals: tuple[int, int]
    hlcs: tuple[int, int]

    def span(self, order: Order) -> tuple[int, int]:
        return self.arrivals if order == "arrival" else self.hlcs


class ObjectDeltas:
    """`DatabaseAdapter` over a `LakeAdapter`."""

    def __init__(
        self, objects: LakeAdapter, flush_format: FlushFormat = "parquet", prefix: str = DELTAS_PREFIX
    ) -> None:
        """Args: flush_format: of new objects; both are read.

        Raises:
            ConfigurationError: Parquet is wanted and pyarrow is not installed.
        """
        if flush_format == "parquet":
            require_pyarrow()
        self.objects = objects
        self._format = flush_format
        self._prefix = prefix
        self._recent = Recent()

    def insert_deltas(self, batch: DeltaBatch) -> Held:
        """Keep a batch as one object, and read it back."""
        key = self._key(batch)
        if self._format == "parquet":
            data = encode_parquet(batch.deltas, {"lakesync.batch_id": batch.batch_id})
        else:
            data = encode_envelope(batch.gateway, batch.deltas, hlc.wall_clock())
        written = _parse(key, self._prefix)
        if written is None:
            raise ValidationError(f"{batch.gateway!r} cannot be a gateway id in an object's key {key!r}")
        self.objects.put_object(key, data, if_absent=True)
        return self._held(written)

    def query_deltas_since(self, query: DeltaQuery) -> DeltaPage:
        """A page, from the objects that may hold some of it.

        Objects are read in the order of their least value until what was found lies below all that is left.
        """
        objects = sorted(self._reaching(query), key=lambda each: each.span(query.order)[0])
        found: dict[Position, StoredDelta] = {}
        for place, each in enumerate(objects):
            for stored in selected(self._read(each), query):
                found.setdefault(position_of(stored, query.order), stored)
            if len(found) > query.limit and place + 1 < len(objects):
                beyond = sorted(found)[query.limit]
                if beyond.value < objects[place + 1].span(query.order)[0]:
                    break
        places = sorted(found)
        page = tuple(found[place] for place in places[: query.limit])
        return DeltaPage(page, places[query.limit - 1] if len(places) > query.limit else None)

    def get_latest_state(self, gateway: str | None, table: str, row_ids: Collection[str]) -> dict[str, RowState]:
        """The merge of all deltas held of each row."""
        query = DeltaQuery(gateway=gateway, tables=(table,), rows=tuple(row_ids))
        if not row_ids:
            return {}
        return merged(stored.delta for each in self._reaching(query) for stored in selected(self._read(each), query))

    def newest_position(self) -> Position | None:
        """The place after the last of all deltas, from the objects that reach furthest."""
        objects = list(self._reaching(DeltaQuery()))
        latest = max((each.arrivals[1] for each in objects), default=0)
        last = [stored for each in objects if each.arrivals[1] == latest for stored in self._read(each)]
        return max((position_of(stored, "arrival") for stored in last), default=None)

    def close(self) -> None:
        """Release the object store's connections."""
        self.objects.close()

    def _key(self, batch: DeltaBatch) -> str:
        arrivals = [stored.arrival for stored in batch.deltas]
        hlcs = [stored.delta.hlc for stored in batch.deltas]
        day = datetime.fromtimestamp(hlc.decode(min(arrivals))[0] / 1000, UTC).strftime("%Y-%m-%d")
        spans = "-".join(f"{value:016x}" for value in (min(arrivals), max(arrivals), min(hlcs), max(hlcs)))
        name = quote(batch.batch_id.removeprefix(f"{batch.gateway}."), safe="")
        ending = "parquet" if self._format == "parquet" else "json"
        return f"{self._prefix}/{batch.gateway}/{day}/{spans}.{name}.{ending}"

    def _reaching(self, query: DeltaQuery) -> Iterator[_Named]:
        """The objects that may hold something of what is asked for."""
        after = query.after.value if query.after is not None else query.since
        for key in self._keys(f"{self._prefix}/{query.gateway}/" if query.gateway else f"{self._prefix}/"):
            each = _parse(key, self._prefix)
            if each is None:
                continue
            low, high = each.span(query.order)
            if high >= max(after, query.since) and (query.until is None or low <= query.until):
                yield each

    def _keys(self, prefix: str) -> Iterator[str]:
        after, more = "", True
        while more:
            page = self.objects.list_objects(prefix, after=after)
            for info in page.objects:
                yield info.key
            after = page.objects[-1].key if page.objects else after
            more = page.more

    def _held(self, each: _Named) -> Held:
        """What an object holds, read back."""
        if each.key.endswith(".parquet"):
            return held_in_parquet(self.objects.get_object(each.key))
        return held(self._decoded(each))

    def _read(self, each: _Named) -> Sequence[StoredDelta]:
        return self._recent.get(each.key, lambda _: self._decoded(each))

    def _decoded(self, each: _Named) -> Sequence[StoredDelta]:
        data = self.objects.get_object(each.key)
        if each.key.endswith(".parquet"):
            return decode_parquet(data)
        return _of_envelope(data, each)


def _of_envelope(data: bytes, each: _Named) -> list[StoredDelta]:
    """An envelope keeps no arrivals: all of its deltas have the batch's last."""
    envelope = decode_envelope(data)
    return [StoredDelta(envelope.gateway_id, each.arrivals[1], delta) for delta in envelope.deltas]


def _parse(key: str, prefix: str) -> _Named | None:
    """What a key says; None where it is not one of ours."""
    found = _KEY.fullmatch(key.removeprefix(f"{prefix}/"))
    if found is None:
        return None
    first, last, low, high = (int(value, 16) for value in found["spans"].split("-"))
    arrivals = (first, last) if found["ending"] == "parquet" else (last, last)
    return _Named(key, found["gateway"], arrivals, (low, high))
