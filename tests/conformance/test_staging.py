"""What every staging store does. A store is added by one line in `places.PLACES`."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lakesync.delta import id_digest
from lakesync.exceptions import IntegrityError, NotFoundError, SchemaError
from lakesync.lww import RowState
from lakesync.rules.model import SyncRules
from lakesync.schema import Column, TableSchema
from lakesync.staging.ledger import day_of
from lakesync.staging.records import ARRIVAL_STEP, ClientRecord, Cut, CutTable, Move, StoredRow
from lakesync.wire.log import decode_body
from tests.conformance.book import EVERYONE, contents, id_sum, make_delta

DAY_MS = 86_400_000


def push(store, book, *deltas, gateway="g"):
    """A push, waited for."""
    return store.submit(gateway, book.push(deltas)).result()


def read(store, work, gateway="g"):
    """A reading, waited for."""
    return store.read(gateway, work).result()


def many(client, count, *, start=1, width=1):
    """Pushes of `width` deltas each."""
    return [[make_delta(client, (start + i) * 100 + j, f"r{i}-{j}", x=i) for j in range(width)] for i in range(count)]


class TestCommits:
    def test_what_was_committed_is_read(self, store, book):
        entry = push(store, book, make_delta("c", 5, "r1", x=1), make_delta("c", 6, "r2", x=2))
        assert (entry.seq, entry.count, entry.hlc_low, entry.hlc_high) == (1, 2, 5, 6)
        rows, entries = read(store, contents)
        assert [row.row_id for row in rows] == ["r1", "r2"]
        assert [found.changed for found in entries] == [entry.arrival - ARRIVAL_STEP, entry.arrival]
        assert read(store, lambda view: view.arrival) == entry.arrival

    def test_a_failing_work_leaves_nothing_and_does_not_disturb_its_group(self, store, book):
        def failing(commit):
            book.push([make_delta("c", 50, "lost", x=1)])(commit)
            commit.put_client(ClientRecord("c", commit.epoch, 1))
            commit.put_moves([Move("fresh", "notes", "lost", commit.next_arrivals(1)[0], "join")])
            raise ValueError("on purpose")

        futures = []
        for i in range(20):
            futures.append(store.submit("g", book.push([make_delta("c", 100 + i, f"r{i}", x=i)])))
            futures.append(store.submit("g", failing))
        good, bad = futures[::2], futures[1::2]
        assert [future.result().seq for future in good] == list(range(1, 21))
        for future in bad:
            with pytest.raises(ValueError, match="on purpose"):
                future.result()
        rows, entries = read(store, contents)
        assert {row.row_id for row in rows} == {f"r{i}" for i in range(20)}
        assert {entry.bucket for entry in entries} == {EVERYONE}
        assert read(store, lambda view: (view.buckets("fresh"), view.client("c"))) == ([], None)
        assert [day.count for day in store.ledger("g")] == [20]

    def test_a_bucket_that_a_failed_work_made_can_be_made_again(self, store):
        def work(commit, fail):
            commit.put_moves([Move("b", "t", "r", commit.next_arrivals(1)[0], "join")])
            if fail:
                raise ValueError

        failed = store.submit("g", lambda commit: work(commit, True))
        store.submit("g", lambda commit: work(commit, False)).result()
        assert isinstance(failed.exception(), ValueError)
        assert [entry.row_id for entry in read(store, lambda view: view.entries_after(["b"], 0, 10))] == ["r"]

    def test_a_commit_reads_what_it_wrote(self, store, book):
        def work(commit):
            book.push([make_delta("c", 7, "r", x=1)])(commit)
            commit.put_client(ClientRecord("c", commit.epoch, 9))
            rows = commit.rows([("notes", "r")])
            entries = commit.entries_after([EVERYONE], 0, 10)
            return (
                len(rows),
                len(entries),
                commit.client("c").last_seen_ms,
                commit.highest_hlc("c"),
                commit.backlog_bytes,
            )

        *seen, size = store.submit("g", work).result()
        assert seen == [1, 1, 9, 7]
        assert size > 0

    def test_gateways_do_not_see_each_other(self, store, book):
        store.ensure_gateway("other")
        push(store, book, make_delta("c", 1, "r", x=1))
        assert read(store, contents, "other") == ([], [])
        assert store.gateways() == ["g", "other"]

    def test_an_unknown_gateway_is_named(self, store):
        for future in (store.submit("nowhere", lambda _: None), store.read("nowhere", lambda _: None)):
            with pytest.raises(NotFoundError, match="nowhere"):
                future.result()
        for call in (store.gateway_config, store.ledger, store.request_flush, store.newest_cut):
            with pytest.raises(NotFoundError, match="nowhere"):
                call("nowhere")
        with pytest.raises(NotFoundError, match="nowhere"):
            store.plan("nowhere", "main", 10)

    def test_ensuring_a_gateway_twice_keeps_its_epoch(self, store, clock):
        epoch = read(store, lambda view: view.epoch)
        clock.advance(1000)
        store.ensure_gateway("g")
        assert read(store, lambda view: view.epoch) == epoch

    def test_works_run_in_order_of_submission(self, store):
        order: list[int] = []
        futures = [store.submit("g", lambda _, i=i: order.append(i)) for i in range(300)]
        for future in futures:
            future.result()
        assert order == list(range(300))


class TestArrivals:
    def test_they_grow_by_the_clock(self, store, clock):
        first = store.submit("g", lambda commit: commit.next_arrivals(3)).result()
        assert list(first) == [(clock.now_ms << 16) + i * ARRIVAL_STEP for i in range(3)]
        clock.advance(10)
        assert store.submit("g", lambda commit: commit.next_arrivals(1)).result()[0] == clock.now_ms << 16

    def test_they_never_go_back_with_the_clock_nor_with_a_restart(self, place, store, book, clock):
        before = push(store, book, make_delta("c", 1, "r", x=1)).arrival
        clock.advance(-3_600_000)
        stepped = push(store, book, make_delta("c", 2, "r", x=2)).arrival
        assert stepped == before + ARRIVAL_STEP
        store = place.reopen(store, book)
        after = push(store, book, make_delta("c", 3, "r", x=3)).arrival
        assert after == stepped + ARRIVAL_STEP
        assert read(store, lambda view: view.arrival) == after

    def test_arrivals_without_a_log_row_are_kept_too(self, place, store, book, clock):
        last = store.submit("g", lambda commit: commit.next_arrivals(1000)).result()[-1]
        clock.advance(-1000)
        store = place.reopen(store, book)
        assert store.submit("g", lambda commit: commit.next_arrivals(1)).result()[0] > last

    def test_none_asked_for_is_none_given(self, store):
        assert list(store.submit("g", lambda commit: commit.next_arrivals(0)).result()) == []


class TestRowsAndClients:
    def test_rows_come_back_as_they_were(self, store, book):
        push(store, book, make_delta("c", 2**62, "r\U00010000\u00e9'\"", x={"k": [1, None, "é"]}, y=2**60))
        (row,), _ = read(store, contents)
        assert (row.table, row.row_id) == ("notes", "r\U00010000\u00e9'\"")
        assert {column: bytes(value) for column, value in row.state.values().items()} == {
            "x": '{"k":[1,null,"é"]}'.encode(),
            "y": b"1152921504606846976",
        }

    def test_scanning_goes_by_key_in_pages(self, store, book):
        keys = sorted((table, f"r{i}") for table in ("a", "b") for i in range(7))
        for place_, (table, row) in enumerate(keys):
            push(store, book, make_delta("c", place_ + 1, row, table, x=1))

        def work(commit):
            found, after = [], None
            while rows := commit.scan_rows(after, 3):
                after = rows[-1].key
                found += [row.key for row in rows]
            return found

        assert store.submit("g", work).result() == keys

    def test_a_client_record_is_replaced_whole(self, store):
        for seen in (1, 2):
            store.submit("g", lambda commit, seen=seen: commit.put_client(ClientRecord("c", 7, seen))).result()
        assert read(store, lambda view: view.client("c")) == ClientRecord("c", 7, 2)
        assert read(store, lambda view: view.client("d")) is None


arrivals_and_moves = st.lists(
    st.tuples(
        st.sampled_from(["b1", "b2", "b3"]),
        st.sampled_from(["r1", "r2", "r3", "r4"]),
        st.sampled_from(["join", "stay", "leave", "own"]),
    ),
    max_size=30,
)


class TestEntries:
    @pytest.fixture
    def gateways(self, store):
        """A new gateway at each call, for examples that share one store."""
        numbers = iter(range(10_000))

        def make() -> str:
            name = f"example-{next(numbers)}"
            store.ensure_gateway(name)
            return name

        return make

    @settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(pushes=st.lists(arrivals_and_moves, max_size=4), limit=st.integers(1, 5), skip=st.integers(0, 40))
    def test_they_are_what_a_naive_model_says(self, store, gateways, pushes, limit, skip):
        gateway = gateways()
        model: dict[tuple[str, str], list] = {}

        def work(commit, moves):
            made = []
            for (bucket, row, kind), arrival in zip(moves, commit.next_arrivals(len(moves)), strict=True):
                made.append(Move(bucket, "t", row, arrival, kind))
                _model_move(model.setdefault((bucket, row), [0, 0, 0, 0, False]), kind, arrival)
            commit.put_moves(made)

        for moves in pushes:
            store.submit(gateway, lambda commit, moves=moves: work(commit, moves)).result()
        buckets = ["b1", "b3", "never used"]
        start = read(store, lambda view: view.arrival, gateway) - skip * ARRIVAL_STEP
        expected = sorted(
            ([bucket, row, *history] for (bucket, row), history in model.items() if bucket in buckets),
            key=lambda entry: entry[5],
        )
        paged, since = [], start
        while page := read(store, lambda view, s=since: view.entries_after(buckets, s, limit), gateway):
            assert len(page) <= limit
            since = page[-1].changed
            paged += page
        flat = [[e.bucket, e.row_id, e.first, e.since, e.left, e.changed, e.inside] for e in paged]
        assert flat == [entry for entry in expected if entry[5] > start]
        of = read(store, lambda view: view.entries_of([("t", "r1"), ("t", "r9")], buckets), gateway)
        assert sorted([e.bucket, e.row_id, e.first, e.since, e.left, e.changed, e.inside] for e in of) == sorted(
            entry for entry in expected if entry[1] == "r1"
        )
        assert read(store, lambda view: view.changed_after(buckets, start), gateway) == bool(flat)

    def test_a_row_under_several_buckets_comes_once_for_each(self, store):
        def work(commit):
            (arrival,) = commit.next_arrivals(1)
            commit.put_moves([Move(bucket, "t", "r", arrival, "join") for bucket in ("b2", "b1")])

        store.submit("g", work).result()
        entries = read(store, lambda view: view.entries_after(["b2", "b1"], 0, 10))
        assert [entry.bucket for entry in entries] == ["b1", "b2"]

    def test_buckets_are_found_by_prefix(self, store):
        names = ["team:a", "team:a\U0010ffffz", "team:b", "teal", "teams"]

        def work(commit):
            commit.put_moves(
                Move(name, "t", "r", at, "join") for name, at in zip(names, commit.next_arrivals(5), strict=True)
            )

        store.submit("g", work).result()
        assert read(store, lambda view: view.buckets("team:")) == ["team:a", "team:a\U0010ffffz", "team:b"]
        assert read(store, lambda view: view.buckets("team:a")) == ["team:a", "team:a\U0010ffffz"]
        assert sorted(read(store, lambda view: view.buckets(""))) == sorted(names)


def _model_move(history: list, kind: str, arrival: int) -> None:
    first, since, left, changed, inside = 0, 1, 2, 3, 4
    history[changed] = arrival
    if kind in ("join", "own") and not history[first]:
        history[first] = arrival
    if kind == "join":
        history[since] = arrival
        history[inside] = True
    elif kind == "leave":
        history[left] = arrival
        history[inside] = False


class TestIds:
    def test_a_repeat_is_known_whatever_its_place(self, store, book):
        sent = [delta for pushed in many("c", 20, width=3) for delta in pushed]
        for i in range(0, len(sent), 3):
            push(store, book, *sent[i : i + 3])
        assert push(store, book, *reversed(sent)) is None
        assert push(store, book, sent[7]) is None

    @settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(data=st.data())
    def test_they_are_found_by_range_as_a_naive_model_finds_them(self, store, data):
        client = f"c{data.draw(st.integers(0, 10**9))}"
        pushes = data.draw(st.lists(st.lists(st.integers(0, 60), min_size=1, max_size=4, unique=True), max_size=6))
        low, high = sorted(data.draw(st.tuples(st.integers(0, 60), st.integers(0, 60))))
        sent = [make_delta(client, hlc, f"r{place_}-{hlc}", x=1) for place_, hlcs in enumerate(pushes) for hlc in hlcs]

        def work(commit):
            before = commit.known_ids(client, -1, 100), commit.highest_hlc(client)
            for place_, hlcs in enumerate(pushes):
                deltas = [make_delta(client, hlc, f"r{place_}-{hlc}", x=1) for hlc in hlcs]
                commit.append(client, deltas, commit.next_arrivals(1)[0], {})
            after = commit.known_ids(client, low, high), commit.highest_hlc(client)
            raise KeptError(before, after)

        raised = store.submit("g", work).exception()
        assert isinstance(raised, KeptError)
        before, after = raised.args
        assert before == (set(), -1)
        wanted = {(delta.hlc, id_digest(delta.delta_id)) for delta in sent if low <= delta.hlc <= high}
        assert after == (wanted, max((delta.hlc for delta in sent), default=-1))

    def test_they_outlive_the_trim_and_a_restart(self, place, store, book):
        sent = [delta for pushed in many("c", 5, width=2) for delta in pushed]
        push(store, book, *sent)
        flush(store, sent)
        assert store.trim("g", "main") > 0
        store = place.reopen(store, book)
        assert push(store, book, *sent) is None
        assert store.trim("g", "main") == 0


class KeptError(Exception):
    """Carries what a work saw out of it, so that nothing stays behind."""


def flush(store, deltas, max_deltas=10_000):
    """A batch planned and confirmed."""
    batch = store.plan("g", "main", max_deltas)
    store.confirm(batch.batch_id, len(deltas), id_sum(deltas))
    return batch


class TestConfiguration:
    def schema(self, *names):
        return TableSchema("notes", tuple(Column(name, "string") for name in names))

    def test_schemas_evolve_by_addition(self, place, store, book):
        assert store.submit("g", lambda commit: commit.put_schema(self.schema("a"))).result() == 1
        assert store.submit("g", lambda commit: commit.put_schema(self.schema("a"))).result() == 1
        assert store.submit("g", lambda commit: commit.put_schema(self.schema("a", "b"))).result() == 2
        refused = store.submit("g", lambda commit: commit.put_schema(self.schema("b")))
        with pytest.raises(SchemaError, match="'a'"):
            refused.result()
        store = place.reopen(store, book)
        config = store.gateway_config("g")
        assert config.version == 2
        assert (config.schemas["notes"].version, config.schemas["notes"].schema) == (2, self.schema("a", "b"))

    def test_names_that_differ_in_case_alone_are_refused(self, store):
        store.submit("g", lambda commit: commit.put_schema(self.schema("a"))).result()
        other = msgspec.structs.replace(self.schema("a"), table="Notes")
        with pytest.raises(SchemaError, match="only in case"):
            store.submit("g", lambda commit: commit.put_schema(other)).result()

    def test_rules_take_effect_at_once_with_a_version_of_their_own(self, place, store, book):
        push(store, book, make_delta("c", 1, "r", team="x"))
        before = read(store, lambda view: view.arrival)
        assert store.gateway_config("g").rules is None
        futures = [store.submit("g", book.push([make_delta("c", 2 + i, f"s{i}", team="y")])) for i in range(3)]
        changed = store.submit("g", book.set_rules(SyncRules(9, ())))
        futures += [store.submit("g", book.push([make_delta("c", 9 + i, f"t{i}", team="z")])) for i in range(3)]
        assert changed.result() == 1
        assert [future.result().seq for future in futures] == [2, 3, 4, 5, 6, 7]
        assert store.submit("g", book.set_rules(SyncRules(9, ()))).result() == 2
        config = store.gateway_config("g")
        assert (config.rules, config.rules_version, config.version) == (SyncRules(9, ()), 2, 2)
        old = read(store, lambda view: view.entries_after(['"x"'], before, 10))
        assert [entry.inside for entry in old] == [False]
        expected = read(store, contents)
        store = place.reopen(store, book)
        assert read(store, contents) == expected
        assert store.gateway_config("g") == config

    def test_a_failed_change_of_rules_changes_nothing(self, store, book):
        def failing(commit):
            book.set_rules(SyncRules(1, ()))(commit)
            raise ValueError

        push(store, book, make_delta("c", 1, "r", team="x"))
        expected = read(store, contents)
        assert isinstance(store.submit("g", failing).exception(), ValueError)
        assert read(store, contents) == expected
        assert store.gateway_config("g").rules_version == 0


class TestPlans:
    def test_nothing_waits_at_first(self, store):
        assert store.plan("g", "main", 100) is None
        (waiting,) = store.backlog()
        assert (waiting.deltas, waiting.bytes, waiting.oldest_ms, waiting.last_seq) == (0, 0, None, 0)

    def test_a_batch_is_a_whole_prefix_within_the_budget(self, store, book):
        entries = [push(store, book, *deltas) for deltas in many("c", 5, width=4)]
        batch = store.plan("g", "main", 11)
        assert (batch.from_seq, batch.to_seq, batch.deltas) == (1, 2, 8)
        assert (batch.arrival_low, batch.arrival_high) == (entries[0].arrival, entries[1].arrival)
        assert batch.bytes == len(entries[0].body) + len(entries[1].body)
        assert batch.batch_id == f"g.main.{batch.epoch}.1-2"

    def test_a_push_above_the_budget_is_a_batch_of_its_own(self, store, book):
        push(store, book, *many("c", 1, width=9)[0])
        push(store, book, *many("c", 1, start=9)[0])
        batch = store.plan("g", "main", 3)
        assert (batch.from_seq, batch.to_seq, batch.deltas) == (1, 1, 9)

    def test_it_stays_while_pushes_go_on_and_across_a_restart(self, place, store, book):
        first, *rest = many("c", 4)
        push(store, book, *first)
        planned = store.plan("g", "main", 100)
        for deltas in rest:
            push(store, book, *deltas)
        assert store.plan("g", "main", 100) == planned
        store = place.reopen(store, book)
        assert store.plan("g", "main", 1) == planned
        store.confirm(planned.batch_id, 1, id_sum(first))
        following = store.plan("g", "main", 100)
        assert (following.from_seq, following.to_seq) == (2, 4)

    def test_confirming_refuses_other_numbers_and_repeats_harmlessly(self, store, book):
        (deltas,) = many("c", 1, width=3)
        push(store, book, *deltas)
        batch = store.plan("g", "main", 100)
        for count, total in ((2, id_sum(deltas)), (3, id_sum(deltas) ^ 1), (0, 0)):
            with pytest.raises(IntegrityError, match=batch.batch_id):
                store.confirm(batch.batch_id, count, total)
        assert store.backlog()[0].flushed_seq == 0
        for _ in range(2):
            store.confirm(batch.batch_id, 3, id_sum(deltas))
        with pytest.raises(IntegrityError):
            store.confirm(batch.batch_id, 4, id_sum(deltas))
        (day,) = store.ledger("g")
        assert (day.flushed_count, day.flushed_id_sum) == (day.count, day.id_sum) == (3, id_sum(deltas))
        with pytest.raises(NotFoundError, match="never-planned"):
            store.confirm("never-planned", 0, 0)

    def test_the_backlog_says_what_waits(self, store, book, clock):
        entries, sent = [], []
        for deltas in many("c", 3, width=2):
            clock.advance(1000)
            entries.append(push(store, book, *deltas))
            sent.append(deltas)
        size = [len(entry.body) for entry in entries]
        (waiting,) = store.backlog()
        assert (waiting.deltas, waiting.bytes, waiting.last_seq) == (6, sum(size), 3)
        assert waiting.last_arrival == entries[-1].arrival
        assert waiting.oldest_ms == clock.now_ms - 2000
        flush(store, sent[0], 2)
        (waiting,) = store.backlog()
        assert (waiting.deltas, waiting.bytes, waiting.flushed_seq) == (4, sum(size[1:]), 1)
        assert waiting.oldest_ms == clock.now_ms - 1000
        assert store.submit("g", lambda commit: commit.backlog_bytes).result() == sum(size[1:])

    def test_a_flush_that_was_asked_for_is_served_by_the_batch_up_to_then(self, place, store, book, clock):
        pushes = many("c", 3)
        push(store, book, *pushes[0])
        push(store, book, *pushes[1])
        store.request_flush("g")
        asked = clock.now_ms
        clock.advance(1000)
        store.request_flush("g")
        push(store, book, *pushes[2])
        store = place.reopen(store, book)
        assert store.backlog()[0].flush_requested_ms == asked
        flush(store, pushes[0], 1)
        assert store.backlog()[0].flush_requested_ms == asked
        flush(store, pushes[1], 1)
        assert store.backlog()[0].flush_requested_ms is None

    def test_a_flush_of_nothing_is_served_already(self, store):
        store.request_flush("g")
        assert store.backlog()[0].flush_requested_ms is None

    def test_a_trim_takes_bodies_of_confirmed_batches_alone(self, place, store, book):
        pushes = many("c", 4, width=2)
        entries = [push(store, book, *deltas) for deltas in pushes]
        assert store.trim("g", "main") == 0
        store.plan("g", "main", 4)
        assert store.trim("g", "main") == 0
        flush(store, pushes[0] + pushes[1])
        expected = read(store, contents)
        assert store.trim("g", "main") == sum(len(entry.body) for entry in entries[:2])
        assert store.trim("g", "main") == 0
        store = place.reopen(store, book)
        assert read(store, contents) == expected
        assert store.plan("g", "main", 100).from_seq == 3

    def test_the_ledger_sums_by_arrival_day(self, store, book, clock):
        sent: dict[str, list] = {}
        for deltas in many("c", 6, width=2):
            entry = push(store, book, *deltas)
            sent.setdefault(day_of(entry.arrival), []).extend(deltas)
            clock.advance(DAY_MS // 2)
        ledger = store.ledger("g")
        assert [day.day for day in ledger] == sorted(sent)
        assert len(sent) >= 3
        assert [(day.count, day.id_sum) for day in ledger] == [(len(sent[d]), id_sum(sent[d])) for d in sorted(sent)]
        everything = [delta for day in sorted(sent) for delta in sent[day]]
        flush(store, everything)
        for day in store.ledger("g"):
            assert (day.flushed_count, day.flushed_id_sum) == (day.count, day.id_sum)


class TestCuts:
    def cut(self, epoch, arrival):
        table = CutTable("notes", 77, 3, ("file:///frame-1",), 12)
        return Cut("g", epoch, arrival, 0, (table,), 5)

    def test_only_a_newer_one_is_published(self, place, store, book):
        epoch = read(store, lambda view: view.epoch)
        assert store.newest_cut("g") is None
        assert store.publish_cut(self.cut(epoch, 1000))
        assert not store.publish_cut(self.cut(epoch, 1000))
        assert not store.publish_cut(self.cut(epoch, 999))
        assert store.publish_cut(self.cut(epoch, 2000))
        store = place.reopen(store, book)
        assert store.newest_cut("g") == self.cut(epoch, 2000)

    def test_one_of_another_epoch_is_refused(self, store):
        epoch = read(store, lambda view: view.epoch)
        with pytest.raises(IntegrityError, match="epoch"):
            store.publish_cut(self.cut(epoch + 1, 1000))


class TestLog:
    def test_a_log_row_alone_holds_the_push(self, store, book):
        deltas = [make_delta("c", 9, "r1", x="é"), make_delta("c", 4, "r2"), make_delta("c", 5, "r1", y=None)]
        entry = push(store, book, *deltas)
        assert decode_body(entry.body) == deltas
        assert (entry.hlc_low, entry.hlc_high, entry.gateway, entry.shard) == (4, 9, "g", "main")

    def test_everything_is_there_after_a_restart(self, place, store, book):
        for deltas in many("c", 30, width=3):
            push(store, book, *deltas)
        push(store, book, make_delta("d", 10**6, "r1-1"))
        expected, backlog = read(store, contents), store.backlog()
        store = place.reopen(store, book)
        assert read(store, contents) == expected
        assert store.backlog() == backlog
        assert read(store, lambda view: view.rows([("notes", "r1-1")]))[("notes", "r1-1")].state.visible is False


def test_a_store_does_not_look_into_rows(store):
    row = StoredRow("t", "r", arrival=1, state=RowState([], None, None))
    store.submit("g", lambda commit: commit.put_rows([row])).result()
    assert read(store, lambda view: view.rows([("t", "r"), ("t", "s")])) == {("t", "r"): row}
