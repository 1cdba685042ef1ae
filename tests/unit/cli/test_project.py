"""The files that `lakesync init` writes, and the settings in effect with their sources."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog

from gateway.__main__ import serve
from gateway.bootstrap import Declarations
from lakehouse.schema_snapshot import SchemaSnapshot
from lakesync import config
from lakesync.adapters import open_adapter
from lakesync.analysis.catalogue import LakeReader, UnreadableTableError
from lakesync.analysis.lost_store import check_not_lost
from lakesync.cli.data_folder import ensure_secrets
from lakesync.cli.exit_codes import ExitCode
from lakesync.cli.up import stack
from lakesync.cli.up.supervisor import Display
from lakesync.engine import Engine
from lakesync.model.errors import ConfigurationError, StartupError
from lakesync.staging import open_staging
from lakesync.testing import ManualClock
from lakesync.testing.servers.oidc import serve_oidc
from lakesync_dagster.definitions import make_definitions


def test_up_reads_the_files_that_init_writes(run):
    result = run("init", "--gateway", "shop")
    assert result.exit_code == 0, result.output
    loaded = config.load()
    assert loaded.data_dir == Path.cwd() / "lakesync-data"
    assert loaded.remote.gateway == "shop"
    assert loaded.gateways["shop"].write_scope == "rules"
    Declarations(loaded.gateways)
    checked = json.loads(run("doctor", "--only", "files", "--json").stdout)
    assert (checked["state"], checked["found"]) == ("ok", "1 schema, sync rules of 1 gateway")
    assert run("rules", "validate", "rules.json", "--schemas", "schemas").exit_code == 0


def test_the_backends_of_a_project_in_a_folder_with_any_name_are_in_it(run):
    run("init", 'a #1 100%41 "x"?')
    written = COMMENTED_OUT.sub("", Path('a #1 100%41 "x"?/lakesync.toml').read_text())
    uris = re.findall(r'= "((?:file|sqlite)://.*)"', written)
    assert len(uris) == 5
    for uri in uris:
        with closing(open_adapter(uri)) as adapter:
            where = Path(getattr(adapter, "folder", None) or adapter.path)
        assert where.parent == Path('a #1 100%41 "x"?/lakesync-data').resolve()


COMMENTED_OUT = re.compile(r"^#(?=\S)", re.MULTILINE)


def named(loaded):
    """Return the names that are declared in each section that moves data."""
    sections = ("tiers", "destinations", "flows", "migrations")
    found = {section: set(getattr(loaded, section)) for section in sections} | {
        "connectors": set(loaded.connectors.declared),
        "hosts": set(loaded.connectors.allowed_hosts) - {"*"},
        "issuers": {each.issuer for each in loaded.gateway.issuers},
    }
    return {section: names for section, names in found.items() if names}


def test_each_disabled_section_works_alone_and_with_the_others(run):
    run("init", "--gateway", "shop")
    written = Path("lakesync.toml").read_text()
    parts = written.split("\n\n# ")
    off = [part for part in parts if COMMENTED_OUT.search(part)]
    assert named(config.load()) == {}
    names = {}
    for part in off:
        Path("lakesync.toml").write_text(written.replace(part, COMMENTED_OUT.sub("", part)))
        found = named(config.load())
        assert found, part
        for section, each in found.items():
            names[section] = names.get(section, set()) | each
    Path("lakesync.toml").write_text(COMMENTED_OUT.sub("", written))
    everything = config.load()
    assert named(everything) == names
    assert names == {
        "tiers": {"aged"},
        "destinations": {"reports", "aged"},
        "flows": {"finished"},
        "migrations": {"away"},
        "connectors": {"support", "store"},
        "hosts": {"127.0.0.1", "localhost"},
        "issuers": {"https://login.example.com/"},
    }
    make_definitions(everything, SchemaSnapshot()).get_repository_def()


def test_init_writes_the_section_of_a_login_provider(run):
    with serve_oidc("auth0") as provider:
        words = ["--auth", "oidc", "--issuer", provider.issuer, "--audience", 'with "quotes" and $dollar']
        result = run("init", "--gateway", "shop", *words)
        assert result.exit_code == 0, result.output
        assert "docs/login.md" not in result.stderr
        provider.audience = 'with "quotes" and $dollar'
        token = provider.token(provider.add_user("alice@example.com"))
        result = run("token", "inspect", "--gateway", "shop", stdin=token)
        assert result.exit_code == 0, result.output
        assert config.load().gateway.issuers[0].audience == ('with "quotes" and $dollar',)


def test_init_reports_settings_that_must_be_completed(run):
    result = run("init", "--auth", "oidc")
    assert result.exit_code == 0, result.output
    assert "set issuer and audience in lakesync.toml" in result.stderr
    assert config.load().gateway.issuers[0].issuer == "https://login.example.com/"
    assert run("init", "--issuer", "https://login.example.com/").exit_code == ExitCode.USAGE
    assert run("init", "--auth", "oidc", "--issuer", "http://login.example.com/").exit_code == ExitCode.USAGE


@pytest.mark.parametrize(
    ("example", "section"),
    [("tiers", "tiers"), ("migration", "migrations"), ("jira", "connectors"), ("postgres", "connectors")],
)
def test_init_enables_an_example(run, example, section):
    assert run("init", "--example", example).exit_code == 0
    assert section in named(config.load())


def test_init_enables_every_example_at_once(run):
    every = ("tiers", "migration", "jira", "postgres")
    assert run("init", *(word for example in every for word in ("--example", example))).exit_code == 0
    assert named(config.load()) == {
        "tiers": {"aged"},
        "destinations": {"aged"},
        "migrations": {"away"},
        "connectors": {"support", "store"},
        "hosts": {"127.0.0.1", "localhost"},
    }


@pytest.mark.parametrize(("example", "variable"), [("jira", "JIRATOKEN"), ("postgres", "STORE")])
def test_the_command_of_an_example_sets_its_variable_for_every_gateway_id(run, example, variable):
    assert run("init", "shop", "--gateway", "my-shop", "--example", example).exit_code == 0
    (command,) = re.findall(r"`(env CONNECTOR_.*) lakesync up`", Path("shop/lakesync.toml").read_text("utf-8"))
    printed = subprocess.run(["/bin/sh", "-c", f"{command} env"], capture_output=True, text=True, check=True).stdout
    assert f"CONNECTOR_my-shop_{variable}=" in printed


def test_init_rejects_an_unknown_example(run):
    result = run("init", "--example", "oracle")
    assert result.exit_code == ExitCode.USAGE
    assert "tiers, migration, jira, postgres" in result.stderr.replace("\n", " ").replace("│", "")


def test_partitions_begin_on_the_day_of_init(run):
    run("init")
    assert config.load().dagster.partitions_start == f"{datetime.now(UTC):%Y-%m-%d}"


@pytest.mark.parametrize("claim", ["sub=bob", "gw=desk", "role=admin", "exp=1"])
def test_a_claim_that_an_option_sets_is_rejected(run, monkeypatch, claim):
    monkeypatch.setenv("LAKESYNC_JWT_SECRET", "s" * 32)
    result = run("token", "create", "--gateway", "shop", "--client", "alice", "--claim", claim)
    assert result.exit_code == ExitCode.USAGE
    assert f"--claim cannot set '{claim.partition('=')[0]}'" in result.stderr


def test_a_token_is_for_the_projects_gateway_by_default(run, monkeypatch):
    assert run("init", "--gateway", "shop").exit_code == 0
    monkeypatch.setenv("LAKESYNC_JWT_SECRET", "s" * 32)
    for words, gateway in ((), "shop"), (("--gateway", "other"), "other"):
        made = run("token", "create", "--client", "alice", *words).stdout
        assert json.loads(run("token", "show", "--json", stdin=made).stdout)["gw"] == gateway


def test_init_overwrites_files_only_with_force(run):
    assert run("init", "shop").exit_code == 0
    Path("shop/rules.json").write_text("mine")
    again = run("init", "shop")
    assert again.exit_code == ExitCode.INVALID
    assert "shop/lakesync.toml" in again.stderr
    assert Path("shop/rules.json").read_text() == "mine"
    forced = run("init", "shop", "--force", "--json")
    assert "shop/rules.json" in json.loads(forced.stdout)["written"]
    assert Path("shop/rules.json").read_text() != "mine"


@pytest.mark.parametrize(
    ("before", "after"),
    [("*.log", "*.log\nlakesync-data/\n"), ("lakesync-data/\n*.log\n", "lakesync-data/\n*.log\n")],
)
def test_init_keeps_the_lines_of_a_gitignore(run, before, after):
    Path(".gitignore").write_text(before)
    assert run("init", "--force").exit_code == 0
    assert Path(".gitignore").read_text() == after


@pytest.mark.parametrize(
    ("schema", "rules", "named"),
    [
        ("{", '{"version": 1, "buckets": []}', "todos.json is not JSON"),
        ('{"table": "todos", "columns": []}', '{"version": 1, "buckets": []}', "todos.json: "),
        (None, '{"version": 0, "buckets": []}', "rules.json: version 0"),
        (None, None, "rules.json cannot be read"),
    ],
)
def test_an_invalid_declared_file_is_named(run, schema, rules, named):
    run("init")
    if schema is not None:
        Path("schemas/todos.json").write_text(schema)
    if rules is not None:
        Path("rules.json").write_text(rules)
    else:
        Path("rules.json").unlink()
    with pytest.raises(ConfigurationError, match=named):
        Declarations(config.load().gateways)
    checked = run("doctor", "--only", "files", "--json")
    assert checked.exit_code == ExitCode.FAILED
    assert re.search(named, json.loads(checked.stdout)["found"])


def test_the_invalid_one_of_several_schemas_is_named(run):
    Path("good.json").write_text('{"table": "t", "columns": [{"name": "x", "type": "string"}]}')
    Path("bad.json").write_text('{"table": "t"}')
    result = run("schema", "apply", "good.json", "bad.json", "--gateway", "shop", "--url", "http://127.0.0.1:1")
    assert result.exit_code == ExitCode.INVALID
    assert "error: bad.json: " in result.stderr


def test_config_show_prints_the_source_of_each_setting(run, tmp_path, monkeypatch):
    (tmp_path / "home" / "lakesync").mkdir(parents=True)
    users = tmp_path / "home" / "lakesync" / "lakesync.toml"
    users.write_text('data_dir = "a"\n[spark]\nmemory = "3g"\ncores = 1\n[gateway]\nport = 1\n[dagster]\nport = 1\n')
    Path("lakesync.toml").write_text('data_dir = "b"\n[spark]\ncores = 2\n[gateway]\nport = 2\n')
    monkeypatch.setenv("LAKESYNC_GATEWAY_PORT", "3")
    monkeypatch.setenv("LAKESYNC_JWT_SECRET", "not to be shown")
    result = run("config", "show", "--json", "--data", tmp_path / "c")
    assert "not to be shown" not in result.output
    found = {each["name"]: (each["value"], each["origin"]) for each in map(json.loads, result.stdout.splitlines())}
    project = str(Path("lakesync.toml").absolute())
    assert found["data_dir"] == (str(tmp_path / "c"), "--data")
    assert found["gateway.port"] == (3, "LAKESYNC_GATEWAY_PORT")
    assert found["jwt_secret"] == ("(set)", "LAKESYNC_JWT_SECRET")
    assert found["spark.cores"] == (2, project)
    assert found["dagster.port"] == (1, str(users))
    assert found["spark.memory"] == ("3g", str(users))
    assert found["flush.max_bytes"][1] == "default"
    assert found["staging.url"][1] == "derived"


def test_config_show_names_a_sections_variable_only_for_the_settings_in_it(run, monkeypatch):
    Path("lakesync.toml").write_text('[spark]\nmemory = "3g"\n')
    monkeypatch.setenv("LAKESYNC_SPARK", '{"cores": 3}')
    monkeypatch.setenv("LAKESYNC_ADAPTERS", '{"files": "file:///objects"}')
    result = run("config", "show", "--json")
    found = {each["name"]: (each["value"], each["origin"]) for each in map(json.loads, result.stdout.splitlines())}
    assert found["spark.cores"] == (3, "LAKESYNC_SPARK")
    assert found["spark.memory"] == ("3g", str(Path("lakesync.toml").absolute()))
    assert found["spark.port"] == (0, "default")
    assert found["adapters.files"] == ("file:///objects", "LAKESYNC_ADAPTERS")


def test_config_show_hides_the_secrets_of_a_declared_connector(run):
    Path("lakesync.toml").write_text(
        '[connectors.support]\ngateway = "app"\ntype = "jira"\njira = { domain = "desk", apiToken = "sesame" }\n'
    )
    result = run("config", "show", "--json", "--changed")
    assert "sesame" not in result.output
    found = {each["name"]: (each["value"], each["origin"]) for each in map(json.loads, result.stdout.splitlines())}
    declared, origin = found["connectors.declared"]
    assert declared["support"]["settings"] == {"domain": "desk", "apiToken": "(set)"}
    assert origin == str(Path("lakesync.toml").absolute())


@pytest.mark.parametrize(
    ("variable", "value", "shown"),
    [
        ("STAGING_URL", "postgresql://ann:sesame@h/db", "postgresql://ann:…@h/db"),
        ("ADAPTERS", '{"my": "mysql://ann:ses@me@h/db?a=1"}', "mysql://ann:…@h/db?a=1"),
        ("ADAPTERS", '{"my": "mysql://ann:ses?me@h/db?a=b@c"}', "mysql://ann:…@c"),
        ("ADAPTERS", '{"my": "mysql://ann:ses/me@h/db?a=b@c"}', "mysql://ann:…@c"),
        ("STAGING_URL", "postgresql://ann@h:5432/db?a=b@c", "postgresql://ann@h:5432/db?a=b@c"),
        ("STAGING_URL", "postgresql://h/db?user=ann&password=sesame", "postgresql://h/db?user=ann&password=…"),
        ("SPARK_SETTINGS", '{"spark.hadoop.fs.s3a.secret.key": "sesame", "a": "b"}', '"(set)"'),
        ("SPARK_SETTINGS", '{"spark.sql.catalog.lake.header.Authorization": "Bearer sesame"}', '"(set)"'),
        ("SPARK_SETTINGS", '{"spark.sql.catalog.lake.header.x-api-key": "sesame"}', '"(set)"'),
        ("SPARK_SETTINGS", '{"spark.hadoop.fs.azure.account.key.a.dfs": "sesame"}', '"(set)"'),
        ("ADAPTERS", '{"pg": "postgresql://h/db?password=sesame"}', "postgresql://h/db?password=…"),
        ("SOURCES", '{"pg": {"uri": "postgresql://h/db?password=sesame"}}', "postgresql://h/db?password=…"),
        ("SOURCES", '{"pg": "postgresql://ann:sesame@h/db"}', "postgresql://ann:…@h/db"),
    ],
)
def test_secrets_are_not_printed(run, monkeypatch, variable, value, shown):
    monkeypatch.setenv(f"LAKESYNC_{variable}", value)
    for words in (["--json"], []):
        result = run("config", "show", *words)
        assert result.exit_code == 0, result.output
        assert shown in result.stdout
        assert "sesame" not in result.output
        assert re.search("ses.me", result.output) is None


def test_an_empty_lakesync_config_disables_all_files(run, tmp_path, monkeypatch):
    (tmp_path / "home" / "lakesync").mkdir(parents=True)
    (tmp_path / "home" / "lakesync" / "lakesync.toml").write_text('[spark]\nmemory = "3g"\n')
    monkeypatch.setenv("LAKESYNC_CONFIG", "")
    assert config.load().spark.memory == "2g"
    assert run("config", "show", "--changed").stdout == ""


def test_an_unknown_setting_is_not_found(run):
    result = run("config", "show", "spork")
    assert (result.exit_code, result.stdout) == (ExitCode.FAILED, "")


def test_a_moved_lake_is_reported_with_its_remedy(run):
    settings = config.load()
    settings.data_dir.mkdir()
    with closing(SqlCatalog("lake", uri=settings.lake.catalog_uri, warehouse=settings.lake.warehouse)) as lake:
        lake.create_namespace("lakesync")
        lake.create_table("lakesync.deltas", pa.schema([("n", pa.int64())]))
    Path(settings.lake.warehouse.removeprefix("file://")).rename(settings.data_dir / "elsewhere")
    result = run("query", "SELECT * FROM deltas")
    assert result.exit_code == ExitCode.UNREACHABLE
    assert "if the data folder was moved, put it back at its old path" in result.stderr
    with pytest.raises(StartupError, match="if the data folder was moved, put it back at its old path"):
        stack.run(settings, Display(json_events=False))
    with pytest.raises(ConfigurationError, match=r"there is no staging store at .*, and the catalogue names a file"):
        check_not_lost(settings)


def test_a_copied_lake_is_not_used_beside_its_original(run, tmp_path, monkeypatch):
    """Two catalogues would write the same files, and the maintenance of each would delete those of the other."""
    settings = config.load()
    settings.data_dir.mkdir()
    with closing(SqlCatalog("lake", uri=settings.lake.catalog_uri, warehouse=settings.lake.warehouse)) as lake:
        lake.create_namespace("lakesync")
        lake.create_table("lakesync.deltas", pa.schema([("n", pa.int64())]))
    shutil.copytree(settings.data_dir, tmp_path / "copy")
    assert run("doctor", "--only", "catalogue").exit_code == ExitCode.OK
    monkeypatch.setenv("LAKESYNC_DATA_DIR", str(tmp_path / "copy"))
    copied = rf"copy/catalog\.db is a copy of {settings.data_dir}/catalog\.db.*put catalogue and warehouse at their old"
    with pytest.raises(StartupError, match=copied):
        stack.run(config.load(), Display(json_events=False))
    for words in (["doctor", "--only", "catalogue"], ["query", "SELECT * FROM deltas"]):
        result = run(*words)
        assert result.exit_code != ExitCode.OK
        assert "is a copy of" in " ".join(result.output.split())
    with LakeReader(config.load()) as reader:
        for _ in range(2):
            with pytest.raises(UnreadableTableError, match="is a copy of"):
                reader.current_snapshot_of("lakesync", "deltas")


def test_two_lakes_with_one_warehouse_are_not_copies(tmp_path):
    """The catalogue of the second one is elsewhere, and names other tables."""
    warehouse = f"file://{tmp_path}/data/warehouse"
    (tmp_path / "data").mkdir()
    for folder, namespace in (("data", "one"), ("other", "two")):
        data = {"data_dir": tmp_path / folder, "lake": {"warehouse": warehouse, "system_namespace": namespace}}
        settings = config.load(data)
        settings.data_dir.mkdir(exist_ok=True)
        with closing(SqlCatalog("lake", uri=settings.lake.catalog_uri, warehouse=warehouse)) as lake:
            lake.create_namespace(namespace)
            lake.create_table(f"{namespace}.deltas", pa.schema([("n", pa.int64())]))
        with LakeReader(settings) as reader:
            assert reader.current_snapshot_of(namespace, "deltas") is None


def test_a_lost_store_is_not_replaced_by_an_empty_one(run):
    url = f"sqlite://{Path.cwd() / 'lakesync-data' / 'staging'}"
    settings = config.load()
    settings.data_dir.mkdir()
    with closing(SqlCatalog("lake", uri=settings.lake.catalog_uri, warehouse=settings.lake.warehouse)) as lake:
        lake.create_namespace("lakesync")
        deltas = lake.create_table("lakesync.deltas", pa.schema([("n", pa.int64())]))
        assert run("doctor", "--only", "staging").exit_code == ExitCode.OK
        deltas.append(pa.table({"n": [1]}))
    with pytest.raises(ConfigurationError, match="but the lake has deltas"):
        serve(settings)
    for words in (["gateway"], ["up"]):
        result = run(*words)
        assert result.exit_code == ExitCode.USAGE
        assert "but the lake has deltas" in result.stderr
        assert "staging rebuild --from-lake" in result.stderr
    assert run("doctor", "--only", "staging").exit_code == ExitCode.FAILED
    clock = ManualClock()
    with closing(Engine(open_staging(url, None, clock), clock)) as engine:
        engine.open()
    check_not_lost(settings)
    assert run("doctor", "--only", "staging").exit_code == ExitCode.OK


def test_the_gateway_alone_uses_the_secrets_that_up_generated(run, monkeypatch):
    started = []
    monkeypatch.setattr(os, "execve", lambda _path, _command, environment: started.append(environment))
    monkeypatch.setenv("LAKESYNC_JWT_SECRET", "configured")
    assert run("gateway").exit_code == ExitCode.OK
    folder = config.load().data_dir
    folder.mkdir(exist_ok=True)
    generated = ensure_secrets(folder)
    assert run("gateway").exit_code == ExitCode.OK
    assert [each.get("LAKESYNC_SECRET_KEY") for each in started] == [None, generated["secret_key"]]
    assert [each["LAKESYNC_JWT_SECRET"] for each in started] == ["configured"] * 2
