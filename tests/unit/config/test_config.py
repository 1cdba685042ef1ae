"""`lakesync.config`: overrides, variables and files; errors that name the setting; the generated reference page."""

import os
import re
from pathlib import Path

import psycopg
import pytest

from lakesync import config
from lakesync.config import reference, settings
from lakesync.model.errors import ConfigurationError

ROOT = Path(__file__).parents[3]


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path, monkeypatch):
    for name in [name for name in os.environ if name.startswith("LAKESYNC_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)


def test_defaults_follow_from_the_data_folder(tmp_path):
    loaded = config.load({"data_dir": tmp_path / "d"})
    assert loaded.staging.url == f"sqlite://{tmp_path}/d/staging"
    assert loaded.lake.catalog_uri == f"sqlite:///{tmp_path}/d/catalog.db"
    assert loaded.lake.warehouse == f"file://{tmp_path}/d/warehouse"
    assert loaded.dagster.home == tmp_path / "d/dagster"
    assert 0 < loaded.limits.max_backpressure_bytes <= 1 << 30


def test_overrides_beat_variables_and_variables_beat_the_file(tmp_path, monkeypatch):
    (tmp_path / "lakesync.toml").write_text('[spark]\nmemory = "3g"\ncores = 9\n[gateway]\nport = 1\n')
    monkeypatch.setenv("LAKESYNC_GATEWAY_PORT", "2")
    monkeypatch.setenv("LAKESYNC_SPARK_CORES", "7")
    loaded = config.load({"gateway": {"host": "::1"}})
    assert (loaded.spark.memory, loaded.spark.cores) == ("3g", 7)
    assert (loaded.gateway.host, loaded.gateway.port) == ("::1", 2)


def test_an_address_without_a_scheme_is_rejected_without_its_password():
    with pytest.raises(ConfigurationError, match=r"lake\.catalog_uri starts with no scheme") as raised:
        config.load({"lake": {"catalog_uri": "user:secret@host/db"}})
    assert "secret" not in str(raised.value)


@pytest.mark.parametrize(
    "password", ["ses@me/w", "ses@me?w", "ses/me?w", "ses?me@w", "ses/w", "ses?w", "ses#w", "ses[w"]
)
@pytest.mark.parametrize(
    ("section", "key"),
    [("staging", "url"), ("lake", "catalog_uri"), ("adapters", "warehouse")],
)
def test_a_postgres_password_that_is_not_percent_encoded_is_rejected_without_it(section, key, password):
    """Postgres' driver and Python would read a part of the password as a host or port, and name it in their errors."""
    with pytest.raises(
        ConfigurationError, match=rf"{section}\.{key} has an @ or the like in its password.*%40"
    ) as raised:
        config.load({section: {key: f"postgresql://ann:{password}@db.internal/staging"}})
    assert "ses" not in str(raised.value)


@pytest.mark.parametrize(
    "address",
    [
        "ann:ses%40me%2Fw@db.internal/staging?options=-c%20a%3Db@c",
        "ann@[::1]:5432,db2:5433/staging?",
        "/staging?host=/run/postgresql&port=5433",
        "%2Frun%2Fpostgresql/staging",
        "",
    ],
)
def test_addresses_of_postgres_are_accepted_as_libpq_reads_them(address):
    assert psycopg.conninfo.conninfo_to_dict(f"postgresql://{address}") is not None
    config.load({"staging": {"url": f"postgresql://{address}"}})


@pytest.mark.parametrize("folder", ["file:///data/a#b", "file:///data/a?b"])
def test_a_folder_of_checkpoints_that_is_not_percent_encoded_is_rejected(folder):
    """Arrow would write all files of the folder to `/data/a`."""
    with pytest.raises(ConfigurationError, match=r"lake\.checkpoints is .*; write %3F or %23"):
        config.load({"lake": {"checkpoints": folder}})


@pytest.mark.parametrize("sign", "?#")
@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("data_dir", lambda sign: {"data_dir": f"/data/a{sign}b"}),
        (r"lake\.warehouse", lambda sign: {"lake": {"warehouse": f"file:///data/a{sign}b"}}),
        (r"lake\.warehouse", lambda sign: {"lake": {"warehouse": f"s3://data/a{sign}b"}}),
    ],
)
def test_a_folder_of_the_lake_that_pyiceberg_would_cut_off_is_rejected(name, settings, sign):
    """Pyiceberg would write all files of each table to `/data/a`."""
    with pytest.raises(ConfigurationError, match=rf"{name} is .* ends at \? or #; use another folder"):
        config.load(settings(sign))


def test_a_child_process_reads_back_an_equal_configuration(tmp_path, monkeypatch):
    loaded = config.load(
        {
            "data_dir": tmp_path,
            "jwt_secret": "s",
            "clock_offset_file": tmp_path / "offset",
            "gateway": {"cors_origins": ["a", "b"]},
            "spark": {"token": "t", "settings": {"spark.x": "1"}, "remote": "sc://localhost:1"},
            "limits": {"max_backpressure_bytes": 5},
            "secret_key": "k",
            "connectors": {"allowed_references": ["env:A_*", "file:/b/{gateway}/*"]},
            "gateways": {"bound": {"write_scope": "rules"}, "free": {}},
            "tables": {"flights": {"contract": "freeze"}},
        }
    )
    for name, value in loaded.environment().items():
        monkeypatch.setenv(name, value)
    assert config.load() == loaded


def test_shards_are_read_from_json_and_from_the_file(tmp_path, monkeypatch):
    given = '{"shards": {"orders": "shard-orders"}, "default": "shard-default"}'
    monkeypatch.setenv("LAKESYNC_SHARD_CONFIG", given)
    loaded = config.load()
    assert loaded.shard_config is not None
    assert (loaded.shard_config.shards, loaded.shard_config.default) == ({"orders": "shard-orders"}, "shard-default")
    for name, value in loaded.environment().items():
        monkeypatch.setenv(name, value)
    assert config.load() == loaded
    monkeypatch.delenv("LAKESYNC_SHARD_CONFIG")
    monkeypatch.setenv("LAKESYNC_CONFIG", "lakesync.toml")
    monkeypatch.setenv("ORDERS", "postgresql://u:p@db/orders")
    stores = 'stores = { shard-orders = "env:ORDERS" }'
    shards = f'shard_config = {{ shards = {{ orders = "shard-orders" }}, default = "shard-default", {stores} }}\n'
    (tmp_path / "lakesync.toml").write_text(shards)
    assert config.load().shard_config.stores == {"shard-orders": "postgresql://u:p@db/orders"}
    (tmp_path / "lakesync.toml").write_text(shards.replace("env:ORDERS", "postgresql://u:p@db/orders"))
    with pytest.raises(ConfigurationError, match="is a secret"):
        config.load()


def test_a_uri_with_a_password_file_needs_no_reference(tmp_path, monkeypatch):
    monkeypatch.setenv("LAKESYNC_CONFIG", "lakesync.toml")
    uri = "postgresql://db/orders?user=u&passfile=/etc/lakesync/pgpass"
    (tmp_path / "lakesync.toml").write_text(f'[adapters]\norders = "{uri}"\n')
    assert config.load().adapters == {"orders": uri}
    (tmp_path / "lakesync.toml").write_text(f'[adapters]\norders = "{uri}&password=p"\n')
    with pytest.raises(ConfigurationError, match="is a secret"):
        config.load()


def test_a_relative_data_folder_starts_at_its_file(tmp_path, monkeypatch):
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/my.toml").write_text('data_dir = "kept"\n')
    monkeypatch.setenv("LAKESYNC_CONFIG", "etc/my.toml")
    assert config.load().data_dir == tmp_path / "etc/kept"


def test_every_relative_path_starts_at_its_file(tmp_path, monkeypatch):
    (tmp_path / "lakesync.toml").write_text(
        'clock_offset_file = "offset"\n[dagster]\nhome = "dagster"\n[lake]\ncheckpoints = "frames"\n'
        '[gateways.shop]\nrules = "rules.json"\nschemas = ["~/todos.json"]\n'
    )
    monkeypatch.setenv("LAKESYNC_CONFIG", str(tmp_path / "lakesync.toml"))
    monkeypatch.setenv("HOME", "/home/ann")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    loaded = config.load()
    assert loaded.clock_offset_file == tmp_path / "offset"
    assert loaded.dagster.home == tmp_path / "dagster"
    assert loaded.lake.checkpoints == str(tmp_path / "frames")
    assert loaded.gateways["shop"].rules == str(tmp_path / "rules.json")
    assert loaded.gateways["shop"].schemas == ("/home/ann/todos.json",)


def test_a_user_without_a_home_folder_has_no_file(monkeypatch):
    def unknown(uid):
        raise KeyError(uid)

    monkeypatch.delenv("HOME")
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    monkeypatch.delenv("LAKESYNC_CONFIG", raising=False)
    monkeypatch.setattr("pwd.getpwuid", unknown)
    assert config.user_file() is None


def test_a_cluster_requires_stores_that_its_workers_reach(monkeypatch):
    monkeypatch.setenv("LAKESYNC_CONFIG", "")
    apart = {
        "spark": {"master": "spark://m:7077"},
        "staging": {"url": "postgresql://db/staging"},
        "lake": {"catalog_uri": "http://catalogue/", "warehouse": "s3://b/w", "checkpoints": "s3://b/c"},
    }
    assert config.load(apart).spark.master == "spark://m:7077"
    for key, local in (("catalog_uri", "sqlite:////d/catalog.db"), ("warehouse", "file:///d"), ("checkpoints", "/d")):
        with pytest.raises(ConfigurationError, match=f"lake.{key} is on this machine's disk"):
            config.load({**apart, "lake": {**apart["lake"], key: local}})


def test_secrets_in_a_file_must_be_references(tmp_path, monkeypatch):
    file = tmp_path / "lakesync.toml"
    (tmp_path / "secret").write_text("from the file\n")
    monkeypatch.setenv("MINE", "from the variable")
    file.write_text('jwt_secret = "env:MINE"\njwt_secret_previous = "file:secret"\n')
    loaded = config.load()
    assert loaded.jwt_secret.get_secret_value() == "from the variable"
    assert loaded.jwt_secret_previous.get_secret_value() == "from the file"
    assert "from the" not in repr(loaded)
    file.write_text('jwt_secret = "hunter2"\n')
    with pytest.raises(ConfigurationError, match="reference") as raised:
        config.load()
    assert "hunter2" not in str(raised.value)


def test_a_secret_in_a_file_that_is_not_text_is_an_error_that_names_the_file(tmp_path):
    (tmp_path / "secret").write_bytes(b"\xff\xfe")
    (tmp_path / "lakesync.toml").write_text('jwt_secret = "file:secret"\n')
    with pytest.raises(ConfigurationError, match="refers to secret, which is no text in UTF-8"):
        config.load()


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("[gateway]\nprot = 1\n", "gateway.prot is not a setting"),
        ("[gateway]\nport = 70000\n", "gateway.port is 70000"),
        ('[staging]\nurl = "mysql://x"\n', "staging.url starts with 'mysql'"),
        ('jwt_secret = "env:NOT_SET_ANYWHERE"\n', "NOT_SET_ANYWHERE"),
        ("[gateway\n", "cannot be read"),
        ("data_dir = 4\n", "data_dir is 4"),
        ("[limits]\nmax_backpressure_bytes = 0\n", "limits.max_backpressure_bytes is 0"),
        ('[[gateways]]\nid = "shop"\n', "gateways in"),
        ('[gateways]\nshop = "rules.json"\n', "write [gateways.shop]"),
        ('[shard_config]\nstores = "a"\n', "write [shard_config.stores]"),
        ('data_dir = "~no-such-user/d"\n', "has '~no-such-user/d', but there is no such home folder"),
        ('jwt_secret = "file:~no-such-user/s"\n', "refers to ~no-such-user/s, but there is no such home folder"),
        ('[adapters]\npg = "postgresql://h/d?user=ann&password=sesame"\n', "adapters.pg.uri in"),
        ('[adapters]\ns3 = "s3://b/p?access_key=env:NOT_SET&secret_key=sesame"\n', "adapters.s3.uri in"),
        ('sources = ["jira"]\n', "is not a table"),
        ("spark = 4\n", "spark in"),
        ('[spark]\nmaster = "spark://m:7077"\n', "staging.url is on this machine's disk"),
        ('[spark.settings]\n"spark.sql.catalog.lake" = "other.Catalog"\n', "another catalogue than"),
        ('[spark.settings]\n"spark.sql.catalog.lake.type" = "hive"\n', "lake.catalog_uri and lake.warehouse instead"),
        ('[spark]\nmaster = "local[4]"\n', "spark.master is 'local"),
    ],
)
def test_errors_name_the_setting(tmp_path, text, named):
    (tmp_path / "lakesync.toml").write_text(text)
    with pytest.raises(ConfigurationError, match=re.escape(named)):
        config.load()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[shard_config]\nstores = {a = 'env:STORE'}\n", "shard_config.default is not set ("),
        ("[shard_config]\ndefault = 'a'\nshards = ['env:STORE']\n", "shard_config.shards ("),
        ("[gateways.shop]\nschemas = {url = 'sesame'}\n", "gateways.shop.schemas ("),
    ],
)
def test_errors_contain_no_value_that_may_be_a_secret(tmp_path, monkeypatch, text, message):
    monkeypatch.setenv("STORE", "postgresql://ann:sesame@here/db")
    (tmp_path / "lakesync.toml").write_text(text)
    with pytest.raises(ConfigurationError, match=re.escape(message)) as raised:
        config.load()
    assert "sesame" not in str(raised.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('data_dir = "d"\n\n[gateway]\nprot = 1\n', "FILE, line 4); did you mean gateway.port?"),
        ("[gatway]\nport = 1\n", "gatway is not a setting (FILE, line 1); did you mean gateway?"),
        ("# of shop\n[gateways.'shop']\nrulez = 'x'\n", "FILE, line 3); did you mean gateways.shop.rules?"),
        ("[remote]\nxyzzy = 1\n", "FILE, line 2); known settings: url, gateway."),
        ("[connectors.x]\ngatewai = 'g'\n", "FILE, line 2); did you mean connectors.x.gateway?"),
        ("[flows.f]\nxyzzy = 1\n", "FILE, line 2); known settings: from, to, "),
        ("gateway.port = 8080\n[spark]\nport = 'many'\n", "spark.port is 'many' (FILE, line 3)"),
        ("[spark]\r\n# port = 1\r\nport = 'many'\r\n", "spark.port is 'many' (FILE, line 3)"),
        ("gateway = {port = 70000}\n", "gateway.port is 70000 (FILE, line 1)"),
        ("[[gateway.issuers]]\nissuer = 'https://a'\n[[gateway.issuers]]\nissuer = 5\n", "(FILE, line 4)"),
    ],
)
def test_errors_name_the_line(tmp_path, text, message):
    file = tmp_path / "lakesync.toml"
    file.write_bytes(text.encode())
    with pytest.raises(ConfigurationError, match=re.escape(message.replace("FILE", str(file)))):
        config.load()


@pytest.mark.parametrize(
    ("variable", "setting"),
    [
        ("LAKESYNC_SPRAK_MEMORY", "LAKESYNC_SPARK_MEMORY"),
        ("LAKESYNC_SPRAK_MEMROY", "LAKESYNC_SPARK_MEMORY"),
        ("LAKESYNC_SPRAK", "LAKESYNC_SPARK"),
        ("LAKESYNC_GATEWAYS_PORT", None),  # a gateway named PORT: pydantic reports it
        ("LAKESYNC_JWT_SECERT", "LAKESYNC_JWT_SECRET"),
        ("LAKESYNC_JWT_SECRET_PREVIUS", "LAKESYNC_JWT_SECRET_PREVIOUS"),
        ("LAKESYNC_LIMIT_MAX_BODY_BYTES", "LAKESYNC_LIMITS_MAX_BODY_BYTES"),
        ("LAKESYNC_SHARDS_CONFIG", "LAKESYNC_SHARD_CONFIG"),
        ("LAKESYNC_SPARK_MEMROY", None),
    ],
)
def test_a_misspelt_variable_is_an_error(monkeypatch, variable, setting):
    monkeypatch.setenv(variable, "1")
    message = rf"^{variable} is not a setting; did you mean {setting}\?$" if setting else "."
    with pytest.raises(ConfigurationError, match=message):
        config.load()


def test_misspelt_variables_are_reported_with_other_errors(monkeypatch):
    monkeypatch.setenv("LAKESYNC_SPRAK_MEMORY", "1g")
    monkeypatch.setenv("LAKESYNC_GATEWAY_PORT", "many")
    with pytest.raises(
        ConfigurationError, match=r"(?s)gateway\.port is 'many'.*LAKESYNC_SPRAK_MEMORY is not a setting"
    ):
        config.load()


def test_variables_of_other_programs_and_referenced_variables_are_no_errors(tmp_path, monkeypatch):
    others = "CONFIG CRASH_AT SUPERVISED ADAPTER_UNDER_TEST URL CLIENT PRIVATE_KEY S3_SECRET_KEY"
    kubernetes = "SERVICE_HOST SERVICE_PORT SERVICE_PORT_HTTP PORT PORT_8000_TCP PORT_8000_TCP_ADDR"
    for name in (*others.split(), *kubernetes.split()):
        monkeypatch.setenv(f"LAKESYNC_{name}", "lakesync.toml")
    (tmp_path / "lakesync.toml").write_text(
        'jwt_secret = "env:LAKESYNC_JWT_SECRETS"\n[connectors]\nallowed_references = ["env:LAKESYNC_{gateway}_TOKEN"]\n'
    )
    monkeypatch.setenv("LAKESYNC_JWT_SECRETS", "s")
    monkeypatch.setenv("LAKESYNC_SPRAK_TOKEN", "t")
    assert config.load().jwt_secret.get_secret_value() == "s"
    monkeypatch.setenv("LAKESYNC_CONFIG", "")
    with pytest.raises(ConfigurationError, match=r"LAKESYNC_JWT_SECRETS .*\n.*LAKESYNC_SPRAK_TOKEN is not a setting"):
        config.load()
    patterns = '["env:LAKESYNC_JWT_SECRETS", "env:LAKESYNC_{gateway}_TOKEN"]'
    monkeypatch.setenv("LAKESYNC_CONNECTORS_ALLOWED_REFERENCES", patterns)
    config.load()


def test_errors_name_the_variable_and_no_source_for_an_override(tmp_path, monkeypatch):
    (tmp_path / "lakesync.toml").write_text("[gateway]\nport = 1\n")
    monkeypatch.setenv("LAKESYNC_GATEWAY_PORT", "many")
    with pytest.raises(ConfigurationError, match=r"gateway.port is 'many' \(the variable LAKESYNC_GATEWAY_PORT\)"):
        config.load()
    with pytest.raises(ConfigurationError, match=r"gateway\.port is 'all': "):
        config.load({"gateway": {"port": "all"}})


def test_a_file_that_is_not_utf8_is_named(tmp_path):
    (tmp_path / "lakesync.toml").write_bytes(b"\xff\xfe[\x00")
    with pytest.raises(ConfigurationError, match=r"lakesync\.toml cannot be read: 'utf-8' codec"):
        config.load()


def test_a_full_disk_does_not_prevent_loading(monkeypatch):
    monkeypatch.setattr(settings, "_free_disk", lambda _: 0)
    assert config.load().limits.max_backpressure_bytes == 1 << 20


@pytest.mark.parametrize("name", ["LAKESYNC_GATEWAY", "LAKESYNC_SPARK_SETTINGS", "LAKESYNC_TABLES"])
def test_a_variable_that_is_not_json_is_named(monkeypatch, name):
    monkeypatch.setenv(name, "shop")
    with pytest.raises(ConfigurationError, match=f"{name} is not JSON. Set each setting of a section"):
        config.load()


def test_a_missing_file_in_lakesync_config_is_an_error(monkeypatch):
    monkeypatch.setenv("LAKESYNC_CONFIG", "nowhere.toml")
    with pytest.raises(ConfigurationError, match="no such file"):
        config.load()


def test_the_shipped_file_changes_no_setting(monkeypatch):
    plain = config.load()
    monkeypatch.setenv("LAKESYNC_CONFIG", str(ROOT / "lakesync.toml"))
    known = {"data_dir": plain.data_dir, "limits": {"max_backpressure_bytes": plain.limits.max_backpressure_bytes}}
    assert config.load(known) == plain


def test_the_reference_page_is_current():
    """docs/configuration.md; `python -m lakesync.config.reference` writes it."""
    assert reference.PAGE.read_text() == reference.page()


def test_every_setting_of_the_reference_page_has_a_description():
    rows = [line for line in reference.page().splitlines() if line.startswith("| `")]
    assert len(rows) > 120
    assert [row for row in rows if row.endswith("|  |")] == []
