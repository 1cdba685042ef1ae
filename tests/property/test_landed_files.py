"""The changes that are read from landed files equal `lakesync.testing.landing`, with any part of them in `known`."""

import copy
import random
from datetime import date
from itertools import pairwise

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakehouse.landing.known_rows import KnownRows, RowDigests, compare_census
from lakehouse.landing.row_changes import PendingPages
from lakehouse.landing.rows import BUCKETS, KNOWN_ROWS, Constants, LandedFile, LandedRows, LandedTable
from lakesync.connectors.base import Census, Page, SourceRow
from lakesync.model.delta import jcs
from lakesync.testing.landing import RowChange, diff_page
from lakesync.wire.json import decode_push

CLIENT = "connector:desk"


def page(chance, number):
    """Rows, deletes and claims that often overlap."""
    rows = [
        SourceRow(
            f"r{chance.randrange(9)}",
            {"uid": f"u{chance.randrange(7)}", "of": f"o{chance.randrange(3)}", "size": chance.choice([1, 1.5, None])},
        )
        for _ in range(chance.randrange(4))
    ]
    deleted = [f"r{chance.randrange(9)}" for _ in range(chance.choice([0, 0, 1]))]
    whole = [("of", f"o{chance.randrange(3)}")] if chance.random() < 0.3 else []
    return Page("issues", rows, {"number": number}, deleted, whole)


def landed(folder, pages, size):
    """Files of `size` pages each, and the pages' stamps."""
    files, places, stamp = [], [], 1_000
    for number, start in enumerate(range(0, len(pages), size), 1):
        rows, first = LandedRows(Constants.of("gw", "desk", number, stamp), stamp), stamp
        for each in pages[start : start + size]:
            places.append(stamp)
            rows.add(each)
            rows.add(Page("others", [SourceRow("r1", {"uid": "u1"})]))
            stamp = rows.newest + 1
        path = folder / f"{len(files)}.parquet"
        pq.write_table(rows.table(), path)
        size, newest = path.stat().st_size, rows.newest
        files.append(
            LandedFile(
                f"file://{path}",
                rows.count,
                size,
                date(2026, 1, 1),
                number,
                number,
                first,
                newest,
                newest,
                has_claims=True,
            )
        )
    return files, places


def known(folder, folding):
    """`known` as a fold writes it."""
    found = []
    for bucket in range(BUCKETS):
        rows = pa.concat_tables([KNOWN_ROWS.empty_table(), *folding.rows(bucket)])
        path = folder / f"known-{bucket}.parquet"
        pq.write_table(rows, path)
        found.append((bucket, f"file://{path}"))
    return tuple(found)


def changes(batches):
    made = pa.Table.from_batches(batches).sort_by("hlc")["delta"].to_pylist()
    body = ('{"clientId":"' + CLIENT + '","deltas":[' + ",".join(made) + "]}").encode()
    deltas = decode_push(body).deltas if made else ()
    return [RowChange(each.op, each.row_id, {cell.column: cell.decoded() for cell in each.columns}) for each in deltas]


def same(changes):
    return sorted((each.op, each.row_id, jcs(each.columns)) for each in changes)


def plain(rows):
    return {each["row_id"]: each["columns"] for piece in rows for each in piece.to_pylist()}


@pytest.mark.parametrize(("identity", "claimed"), [("uid", ("of", "uid")), (None, ("of",)), (None, ())])
@settings(max_examples=5, deadline=None)
@given(seed=st.integers(0, 2**32), parts=st.sampled_from([1, 3]))
def test_changes_read_from_files_equal_the_diff(tmp_path_factory, identity, claimed, seed, parts):
    chance, folder = random.Random(seed), tmp_path_factory.mktemp("landed")
    pages = [page(chance, number) for number in range(chance.randrange(1, 25))]
    if not claimed:
        pages = [Page(each.table, each.rows, each.cursor, each.deleted) for each in pages]
    files, places = landed(folder, pages, chance.randrange(1, 5))
    cuts = sorted(chance.randrange(len(pages) + 1) for _ in range(3))
    diffs, rows, states = [], {}, []
    for each in pages:
        diffs.append(diff_page(rows, each, identity))
        states.append({row_id: jcs(columns) for row_id, columns in rows.items()})
    last = [-1, *places][cuts[0]]
    nothing = LandedTable("issues", identity, tuple(files), (), -1)
    assert set(nothing.claim_columns()) <= set(claimed)
    before = nothing._replace(known=known(folder, KnownRows(nothing, last)), since=last)
    before = before._replace(files=tuple(file for file in files if file.last_page > last))
    assert plain(before.known_rows()) == (states[cuts[0] - 1] if cuts[0] else {})
    for start, end in pairwise([*cuts, len(pages)]):
        telling = PendingPages(before, CLIENT, [-1, *places][start], [-1, *places][end], parts)
        found = [delta for part in range(parts) for delta in changes(telling.deltas(part))]
        assert same(found) == same([change for of_page in diffs[start:end] for change in of_page])
    whole = KnownRows(before, files[-1].last_page)
    assert plain(whole.rows()) == {row_id: jcs(columns) for row_id, columns in rows.items()}
    there = compare_census(whole, Census(None, iter([["r0", "r1"], ["new", "new"]])))
    assert (there.known, there.unknown) == (len(rows), sorted({"r0", "r1", "new"} - rows.keys()))
    assert {row.row_id for row in there.absent} == rows.keys() - {"r0", "r1"}
    of = compare_census(whole, Census("of", iter([["o1"]])))
    assert {row.row_id: row.columns for row in of.absent} == {
        row_id: columns for row_id, columns in rows.items() if columns["of"] != "o1"
    }
    again = [SourceRow(row_id, copy.copy(columns)) for row_id, columns in rows.items()]
    other = SourceRow("r1", {"uid": "another"})
    assert RowDigests(whole).drop_unchanged(Page("issues", [*again, other])).rows == [other]
