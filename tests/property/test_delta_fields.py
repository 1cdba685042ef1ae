"""A frame's deltas by field equal its decoded deltas, and a first sync of them gives the same rows."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from lakesync.client.core import FetchCheckpoint
from lakesync.client.factory import open_client
from lakesync.client.sync import checkpoint_load
from lakesync.client.sync.checkpoint_load import load_checkpoint
from lakesync.client.transports.base import Checkpoint, LocalTransport
from lakesync.model.errors import ValidationError
from lakesync.model.types import ColumnValue, Op, RowDelta, SyncResponse
from lakesync.wire.delta_fields import decode_by_field, split_deltas
from lakesync.wire.protobuf import decode_response, encode_response

OPS: dict[int, Op] = {1: "INSERT", 2: "UPDATE", 3: "DELETE"}
SCHEMA = {"table": "t", "columns": [{"name": name, "type": "json"} for name in "abc"]}
ids = st.text("ab\u00e9🎉", min_size=1, max_size=3)
cells = st.lists(
    st.builds(ColumnValue.of, st.sampled_from("abc"), st.sampled_from([None, 1, "x", {"y": ["\u2028"]}])), max_size=3
).map(tuple)
deltas = st.builds(
    RowDelta,
    op=st.sampled_from(list(OPS.values())),
    table=st.sampled_from(["t", "u"]),
    row_id=ids,
    client_id=ids,
    columns=cells,
    hlc=st.integers(1, 2**63 - 1),
    delta_id=ids,
)


@settings(max_examples=60)
@given(st.lists(deltas, min_size=1, max_size=5))
def test_deltas_by_field_equal_the_decoded_deltas(given: list[RowDelta]) -> None:
    frame = encode_response(SyncResponse(tuple(given), 7, has_more=True))
    found = decode_by_field(split_deltas(frame))
    assert found is not None
    whole = decode_response(frame).deltas
    assert [OPS[op] for op in found.ops] == [delta.op for delta in whole]
    assert found.tables == [delta.table for delta in whole]
    assert found.row_ids == [delta.row_id for delta in whole]
    assert found.clients == [delta.client_id for delta in whole]
    assert found.hlcs == [delta.hlc for delta in whole]
    assert found.names == [name for delta in whole for name in [*(cell.column for cell in delta.columns), ""]]
    assert found.values == [value for delta in whole for value in [*(bytes(c.value) for c in delta.columns), b""]]
    first = [cell.column for cell in whole[0].columns]
    alike = all([cell.column for cell in delta.columns] == first for delta in whole)
    assert found.width == (len(first) if alike else None)


def test_deltas_that_lack_a_field_are_left_to_the_full_decoder() -> None:
    whole = RowDelta("INSERT", "t", "r", "c", (), 1, "d")
    for lacking in (
        msgspec.structs.replace(whole, row_id=""),
        msgspec.structs.replace(whole, hlc=0),
        msgspec.structs.replace(whole, columns=(ColumnValue.of("", 1),)),
    ):
        assert decode_by_field(split_deltas(encode_response(SyncResponse((whole, lacking), 7)))) is None


def test_an_invalid_frame_is_rejected() -> None:
    with pytest.raises(ValidationError, match="malformed"):
        split_deltas(b"\x0a\xff")
    with pytest.raises(ValidationError, match="malformed"):
        decode_by_field([b"\x12\x7f"])


row = st.tuples(
    st.fixed_dictionaries({}, optional=dict.fromkeys("ab", st.sampled_from([1, "x", [None]]))),
    st.none() | st.fixed_dictionaries({}, optional=dict.fromkeys("bc", st.sampled_from([2, "y"]))),
)


@settings(max_examples=15, deadline=None)
@given(rows=st.lists(row, min_size=1, max_size=6), cut=st.integers(1, 4), frames=st.integers(1, 2))
@example(rows=[({"a": 1}, None), ({"a": 2}, None), ({"a": "🎉"}, {"b": 2})], cut=2, frames=1)
def test_a_first_sync_equals_the_rows_of_its_frames(
    rows: list[tuple[dict[str, Any], dict[str, Any] | None]], cut: int, frames: int, tmp_path_factory: Any
) -> None:
    expected, parts = {}, [[] for _ in range(frames)]  # type: ignore[var-annotated]
    for number, (made, added) in enumerate(rows):
        name = f"r{number}"
        expected[name] = dict.fromkeys("abc") | made | (added or {})
        held = {column: value for column, value in made.items() if column not in (added or {})}
        deltas = [_delta("INSERT", name, 10 + number, held)]
        deltas += [] if added is None else [_delta("UPDATE", name, 100 + number, added)]
        parts[number % frames] += deltas
    folder: Path = tmp_path_factory.mktemp("first")
    nobody: Any = SimpleNamespace(gateway_id="g")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checkpoint_load, "STAGED_TOGETHER", cut)
        with open_client(
            folder / "app.db", transport=LocalTransport(nobody), client_id="me", schemas=[SCHEMA]
        ) as client:
            replica = client.coordinator.replica
            replica.core.request_pull()
            assert isinstance(replica.next_request(), FetchCheckpoint)
            messages = (encode_response(SyncResponse(tuple(part), 1000)) for part in parts)
            loaded = load_checkpoint(replica, Checkpoint(1000, messages), lambda _: None)
            assert loaded.rows == len(rows)
            found = {each.pop("row_id"): each for each in map(dict, client["t"])}
            assert found == expected
            known = replica.store.known([("t", name) for name in expected])
            stamps = {name: sorted(part.hlc for part in known["t", name].state.live) for name in expected}
            assert stamps == {
                f"r{number}": sorted(
                    ([10 + number] if set(made) - set(added or {}) else []) + ([100 + number] if added else [])
                )
                for number, (made, added) in enumerate(rows)
            }


def _delta(op: Op, row_id: str, hlc: int, values: dict[str, Any]) -> RowDelta:
    columns = tuple(ColumnValue.of(name, value) for name, value in values.items())
    return RowDelta(op, "t", row_id, "other", columns, hlc, f"{op}-{row_id}")
