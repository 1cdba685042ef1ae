"""Backends that `lakesync.toml` declares are checked by name and resolved to their leaves."""

import os
import re

import pytest

from lakesync import config
from lakesync.adapters import DeltaBatch, DeltaQuery, SqliteAdapter, StoredDelta
from lakesync.adapters.backend_config import WriteTarget, open_backend, resolve_backend, write_targets
from lakesync.model.errors import ConfigurationError
from tests.conformance.book import make_delta

PLACES = """
[adapters]
pg = "env:PG"
copy = "sqlite://{folder}/copy.db"
cold = "file://{folder}/cold"
events = "file://{folder}/events"
[routes.main]
tables = {{ events = "events", clicks = "events" }}
default = "replicated"
[fan_out.replicated]
primary = "aged"
secondaries = ["copy"]
[tiers.aged]
hot = "pg"
cold = "cold"
max_age_days = 30
"""


_ALL = '[tiers.all]\nhot = "copy"\nmax_age_days = 1\n'
"""Tiers without their cold backend."""


@pytest.fixture
def declared(tmp_path, monkeypatch):
    """A configuration with the backends and further sections."""
    for name in [name for name in os.environ if name.startswith("LAKESYNC_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PG", f"sqlite://{tmp_path}/pg.db")

    def load(text=""):
        (tmp_path / "lakesync.toml").write_text(PLACES.format(folder=tmp_path) + text)
        return config.load()

    return load


def test_each_write_target_has_its_tables_and_cold_tier(declared, tmp_path):
    loaded = declared()
    uris = {name: f"sqlite://{tmp_path}/{name}.db" for name in ("pg", "copy")}
    cold = resolve_backend(loaded, "cold")
    others = ("clicks", "events")
    assert write_targets(loaded, "main") == [
        WriteTarget("events", f"file://{tmp_path}/events", others),
        WriteTarget("pg", uris["pg"], (), others, (cold,)),
        WriteTarget("copy", uris["copy"], (), others),
    ]
    assert [(leaf.name, leaf.tables) for leaf in write_targets(loaded, "main", ("orders", "events"))] == [
        ("events", ("events",)),
        ("pg", ("orders",)),
        ("copy", ("orders",)),
    ]


def test_a_backend_opens_as_its_composition(declared, tmp_path):
    hot = SqliteAdapter(tmp_path / "pg.db")
    delta = StoredDelta("g", 256, make_delta("c", 1, "r", table="orders", x=1))
    hot.insert_deltas(DeltaBatch("b", "g", (delta,)))
    opened = open_backend(resolve_backend(declared(), "main"))
    assert opened.query_deltas_since(DeltaQuery()).deltas == (delta,)
    opened.close()
    hot.close()


def test_a_child_process_resolves_the_same_backends(declared, monkeypatch):
    sources = '[sources]\nown = "pg"\nshared = { uri = "env:PG", gateway = "g" }\n'
    loaded = declared(f'[destinations]\nwarehouse = {{ to = "main" }}\n{sources}')
    shared = loaded.sources["shared"]
    assert (shared.uri, shared.gateway, loaded.sources["own"].gateway) == (loaded.adapters["pg"], "g", None)
    for name, value in loaded.environment().items():
        monkeypatch.setenv(name, value)
    assert config.load() == loaded


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            '[destinations]\nd = { to = "pgg" }\n',
            "destinations.d.to names 'pgg', which is not declared (declared: aged,",
        ),
        ('[destinations]\nd = { to = "lake" }\n', "destinations.d.to names 'lake'"),
        ('[sources]\nreports = "nowhere"\n', "sources.reports names 'nowhere'"),
        ('[sources]\nreports = { uri = "nowhere", gateway = "g" }\n', "sources.reports names 'nowhere'"),
        ('[sources]\nreports = { gateway = "g" }\n', "sources.reports.uri is not set"),
        ('[sources]\nreports = { uri = "pg", gatewey = "g" }\n', "did you mean sources.reports.gateway?"),
        ("[sources]\nreports = 5\n", 'lakesync.toml, line 18): a source is a URI or a table; write "URI"'),
        (
            '[sources]\nreports = { uri = "pg", gateway = "a b" }\n',
            "lakesync.toml, line 18): an id has 1 to 64 letters, digits, - and _; name one gateway, or leave",
        ),
        (
            '[sources]\nreports = { uri = "pg", gateway = ["a", "b"] }\n',
            "a source has the deltas of one gateway, not of ['a', 'b']; name one gateway, or leave `gateway` out",
        ),
        ('[tiers.lake]\nhot = "pg"\ncold = "cold"\nmax_age_days = 1\n', "uses the reserved name of the lake"),
        (
            '[fan_out.events]\nprimary = "pg"\nsecondaries = ["copy"]\n',
            "events has the same name as adapters.events",
        ),
        ('[fan_out.a]\nprimary = "pg"\nsecondaries = ["a"]\n', "'a' contains itself: a → a"),
        ('[flows]\nf = { from = "pg", to = "pg" }\n', "flows.f leads from 'pg' to itself"),
        (
            '[flows]\nf = { from = "copy", to = "replicated" }\n',
            "flows.f leads from 'copy' to 'replicated', which share the adapter 'copy'",
        ),
        (
            '[flows]\nf = { from = "events", to = "main" }\n',
            "flows.f leads from 'events' to 'main', which share the adapter 'events'",
        ),
        ('[flows]\nf = { from = "pg", to = "copy", gateways = ["no such/gw!"] }\n', "flows.f.gateways.0"),
        ('[destinations]\nd = { to = "pg", gateways = ["no such/gw!"] }\n', "destinations.d.gateways.0"),
        (
            '[migrations]\nm = { from = "pg", to = "copy", tables = ["t"], since = 2026-02-01, gateway = "a b" }\n',
            "migrations.m.gateway",
        ),
        (
            '[migrations]\nm = { from = "pg", to = "pg", tables = ["t"], since = 2026-02-01 }\n',
            "migrations.m leads from 'pg' to itself",
        ),
        (
            '[tiers.same]\nhot = "pg"\ncold = "pg"\nmax_age_days = 1\n',
            "tiers.same.cold names 'pg', which 'same' has already",
        ),
        (
            f'{_ALL}cold = "back"\n[routes.back]\ntables = {{ events = "events" }}\ndefault = "copy"\n',
            "tiers.all.cold leads to the adapter 'copy', which the hot tier has too",
        ),
        (
            f'{_ALL}cold = "both"\n[fan_out.both]\nprimary = "events"\nsecondaries = ["cold"]\n',
            "tiers.all.cold leads to the fan-out 'both', but deltas move to its primary only; name 'events' instead",
        ),
        (
            '[tiers.other]\nhot = "pg"\ncold = "events"\nmax_age_days = 1\n',
            "tiers.aged and tiers.other both have the adapter 'pg', from which tiers.other moves old deltas",
        ),
        (
            '[flows]\nf = { from = "pg", to = "lake" }\n',
            "from which tiers.aged moves old deltas: flows.f would miss those; let the flow read 'aged'",
        ),
        (
            '[destinations]\nd = { to = "pg" }\n',
            "destinations.d keeps tables of rows at the adapter 'pg', the hot tier of 'aged', without the old changes",
        ),
        (
            '[fan_out.twice]\nprimary = "pg"\nsecondaries = ["copy", "copy"]\n',
            "fan_out.twice.secondaries names 'copy', which 'twice' has already",
        ),
        ('[flows]\nf = { to = "pg" }\n', "flows.f.from"),
        ('[destinations]\nd = { to = "pg", table = ["t"] }\n', "destinations.d.table is not a setting"),
        (
            '[migrations]\nm = { from = "pg", to = "copy", tables = ["t"], since = 2026-02-01, until = 2026-01-01 }\n',
            "migrations.m.until, 2026-01-01, lies before since, 2026-02-01",
        ),
        ("[destinations]\nto-do = { to = 'pg' }\n", "destinations.to-do"),
    ],
)
def test_invalid_backends_are_reported_by_name(declared, text, message):
    with pytest.raises(ConfigurationError, match=re.escape(message)):
        declared(text)


def test_a_flow_may_read_the_tiers_or_the_cold_tier(declared):
    assert declared('[flows]\nf = { from = "main", to = "lake" }\ng = { from = "cold", to = "lake" }\n').flows


def test_a_flow_may_copy_a_table_to_routes_that_use_its_source_for_another_table(declared):
    declared('[flows]\nf = { from = "events", to = "main", tables = ["orders"] }\n')


_FLOW = 'from = "events", where = [{ column = "total", op = "gte", value = "9" }]'
_BOTH = ", and would each delete rows that the other inserts; set rows = false for one of them, or use another"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            f'[destinations]\nd = {{ to = "main" }}\n[flows]\nf = {{ to = "copy", tables = ["orders"], {_FLOW} }}\n',
            "destinations.d and flows.f both keep the table 'orders' at the adapter 'copy'",
        ),
        (
            f'[flows]\nf = {{ to = "pg", {_FLOW} }}\ng = {{ from = "copy", to = "pg" }}\n',
            "flows.f and flows.g both keep every table at the adapter 'pg'",
        ),
        (
            '[destinations]\nd = { to = "aged", tables = ["a", "b"] }\ne = { to = "pg", tables = ["b", "c"] }\n',
            "destinations.d and destinations.e both keep the table 'b' at the adapter 'pg'",
        ),
    ],
)
def test_two_writers_of_one_destination_table_with_different_rows_are_rejected(declared, text, message):
    with pytest.raises(ConfigurationError, match=re.escape(message + _BOTH)):
        declared(text)


def test_one_uri_under_two_names_is_one_backend(declared, monkeypatch, tmp_path):
    monkeypatch.setenv("PG", f"sqlite://{tmp_path}/copy.db")
    with pytest.raises(ConfigurationError, match="every table at the adapter 'copy' and 'pg', and would each delete"):
        declared(f'[destinations]\nd = {{ to = "copy" }}\n[flows]\nf = {{ to = "pg", {_FLOW} }}\n')


def test_tiers_with_one_uri_under_two_names_are_rejected(declared, monkeypatch, tmp_path):
    """What moves would be deleted at the only place where it is."""
    monkeypatch.setenv("PG", f"file://{tmp_path}/cold")
    with pytest.raises(ConfigurationError, match="leads to the adapter 'cold' or 'pg', which the hot tier has too"):
        declared()


def test_tiers_may_contain_tiers(declared):
    declared(
        '[tiers.oldest]\nhot = "aged"\ncold = "events"\nmax_age_days = 90\n[destinations]\nd = { to = "oldest" }\n'
    )


@pytest.mark.parametrize(
    "flow",
    [
        f'to = "pg", rows = false, {_FLOW}',
        f'to = "copy", tables = ["events"], {_FLOW}',  # the destination stores those in another adapter
        f'to = "cold", {_FLOW}',  # the destination stores no rows
        f'to = "lake", {_FLOW}',
        'from = "cold", to = "copy"',  # the flow hides no rows
    ],
)
def test_writers_of_different_tables_may_share_an_adapter(declared, flow):
    assert declared(f'[destinations]\nd = {{ to = "main" }}\n[flows]\nf = {{ {flow} }}\n').flows


def test_a_destination_that_writes_one_adapter_twice_is_rejected(declared):
    loaded = declared('[fan_out.twice]\nprimary = "pg"\nsecondaries = ["aged"]\n')
    with pytest.raises(ConfigurationError, match="leads to the adapter 'pg' in two ways"):
        write_targets(loaded, "twice")


def test_a_table_may_be_routed_to_the_default_backend(declared, tmp_path):
    loaded = declared('[routes.same]\ntables = { orders = "pg", events = "events" }\ndefault = "pg"\n')
    assert write_targets(loaded, "same") == [
        WriteTarget("events", f"file://{tmp_path}/events", ("events",)),
        WriteTarget("pg", f"sqlite://{tmp_path}/pg.db", (), ("events",)),
    ]
    assert [each.tables for each in write_targets(loaded, "same", ("orders",))] == [("orders",)]
