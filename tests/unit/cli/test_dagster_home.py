"""How `lakesync up` starts Dagster: with generated files or those of the user, in the right order."""

import pytest
import yaml
from pydantic import SecretStr

from lakesync import config
from lakesync.cli.up import dagster_home
from lakesync.cli.up.services import MARKER, services
from lakesync.client import UnreachableError
from lakesync.model.errors import ConfigurationError


def test_dagster_accepts_the_generated_files(conf):
    import dagster as dg

    workspace = yaml.safe_load(dagster_home.write_files(conf).read_text())
    assert workspace["load_from"][0]["grpc_server"]["socket"] == str(dagster_home.code_socket(conf))
    with dg.DagsterInstance.from_config(str(conf.dagster.home)) as instance:
        assert not instance.telemetry_enabled
        assert instance.get_settings("concurrency")["pools"] == {"default_limit": 1, "granularity": "run"}
        assert type(instance.run_launcher).__name__ == "RunHostLauncher"
        assert type(instance.run_coordinator).__name__ == "SlotCoordinator"
        runs = instance.get_settings("concurrency")["runs"]
        slots = {each["value"]: each["limit"] for each in runs["tag_concurrency_limits"] if "value" in each}
        assert slots == {"flush": 2, "move": 2, "poll": 2, "upkeep": 2, "other": 2}
        assert runs["max_concurrent_runs"] == sum(slots.values())


def test_dagsters_storage_and_run_launcher_are_those_of_the_settings(conf, monkeypatch):
    import dagster as dg

    password = "not in the file"
    launcher = {"module": "dagster", "class": "DefaultRunLauncher", "config": {}}
    storage = SecretStr(f"postgresql://dagster:{password}@127.0.0.1:1/dagster")
    changed = conf.replace(dagster={"run_launcher": launcher, "storage_url": storage})
    dagster_home.write_files(changed)
    text = (changed.dagster.home / "dagster.yaml").read_text()
    assert password not in text
    assert yaml.safe_load(text)["storage"] == {"postgres": {"postgres_url": {"env": "DAGSTER_STORAGE_URL"}}}
    dagster_home.write_files(changed.replace(dagster={"storage_url": None}))
    with dg.DagsterInstance.from_config(str(conf.dagster.home)) as instance:
        assert type(instance.run_launcher) is dg.DefaultRunLauncher
    found = {service.name: service for service in services(changed, None, conf.data_dir / "workspace.yaml")}
    assert "runs" not in found
    assert found["code_server"].after == ("recovery",)
    for name in ("code_server", "dagster", "daemon", "recovery"):
        assert found[name].environment["DAGSTER_STORAGE_URL"] == storage.get_secret_value().replace(
            "postgresql://", "postgresql+psycopg2://"
        )


def test_processes_that_launch_runs_get_the_variables_of_runs(conf, tmp_path):
    config = conf.replace(secret_key=SecretStr("k" * 32))
    launcher = {"module": "dagster", "class": "DefaultRunLauncher"}
    for run_launcher, expected in ((None, False), (launcher, True)):
        changed = config.replace(dagster={"run_launcher": run_launcher})
        found = {service.name: service for service in services(changed, None, tmp_path / "workspace.yaml")}
        for name, expected_there in (("code_server", expected), ("daemon", expected), ("dagster", False)):
            key = found[name].environment.get("LAKESYNC_SECRET_KEY")
            assert (key is not None) is expected_there, name


def test_a_dagster_yaml_of_the_user_is_used_unchanged(conf, tmp_path):
    dagster_home.write_files(conf)
    path = conf.dagster.home / "dagster.yaml"
    first, rest = path.read_text().split("\n", 1)
    assert first.startswith("# Written by `lakesync up`")
    own = rest.replace("dequeue_interval_seconds: 1", "dequeue_interval_seconds: 2")
    path.write_text(own)
    dagster_home.write_files(conf)
    assert path.read_text() == own
    workspace = tmp_path / "workspace.yaml"
    assert "runs" in {service.name for service in services(conf, None, workspace)}
    path.write_text("telemetry:\n  enabled: false\n")
    dagster_home.write_files(conf)
    assert path.read_text() == "telemetry:\n  enabled: false\n"
    found = {service.name: service for service in services(conf, None, workspace)}
    assert "runs" not in found
    assert found["code_server"].after == ("recovery",), "only Dagster knows its storage"


def test_a_setting_that_the_users_dagster_yaml_overrides_is_rejected(conf):
    conf.dagster.home.mkdir()
    (conf.dagster.home / "dagster.yaml").write_text("telemetry: {enabled: false}\n")
    changed = conf.replace(dagster={"run_launcher": {"module": "dagster", "class": "DefaultRunLauncher"}})
    with pytest.raises(ConfigurationError, match=r"dagster\.run_launcher has no effect, because .*dagster\.yaml"):
        dagster_home.write_files(changed)
    for text in ("a: [", "- a list"):
        (conf.dagster.home / "dagster.yaml").write_text(text)
        with pytest.raises(ConfigurationError, match=r"dagster\.yaml"):
            dagster_home.write_files(conf)


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({"storage_url": "sqlite:///secret"}, "storage_url must start with postgresql://"),
        ({"run_launcher": {"class": "DefaultRunLauncher"}}, "run_launcher must be a table with module, class"),
        ({"run_launcher": {"module": "a", "class": "B", "config": 1}}, "run_launcher must be a table"),
        ({"run_launcher": {"module": "a", "class": "B", "args": {}}}, "run_launcher must be a table"),
    ],
)
def test_a_section_of_dagster_that_cannot_be_used_is_explained(tmp_path, monkeypatch, section, message):
    monkeypatch.setenv("LAKESYNC_CONFIG", "")
    with pytest.raises(ConfigurationError, match=message) as raised:
        config.load({"data_dir": tmp_path, "dagster": section})
    assert "secret" not in str(raised.value)


def test_the_settings_of_dagster_reach_child_processes(tmp_path, monkeypatch):
    (tmp_path / "lakesync.toml").write_text(
        '[dagster]\nhost = "0.0.0.0"\nallowed_hosts = "ops.example.com"\nstorage_url = "env:STORAGE"\n'
        '[dagster.run_launcher]\nmodule = "dagster"\nclass = "DefaultRunLauncher"\n'
    )
    monkeypatch.setenv("STORAGE", "postgresql://dagster:hidden@127.0.0.1/dagster")
    monkeypatch.setenv("LAKESYNC_CONFIG", str(tmp_path / "lakesync.toml"))
    loaded = config.load()
    assert "hidden" not in repr(loaded)
    for name, value in loaded.environment().items():
        monkeypatch.setenv(name, value)
    assert config.load() == loaded


def test_dagsters_storage_is_created_before_anything_else_opens_it(conf, tmp_path):
    found = {service.name: service for service in services(conf, None, tmp_path / "workspace.yaml")}
    assert found["recovery"].once
    for name in ("code_server", "runs"):
        assert found[name].after == ("recovery",)


def test_recovery_runs_before_the_daemon_after_an_earlier_run(conf, tmp_path):
    (conf.dagster.home / "storage").mkdir(parents=True)
    found = {service.name: service for service in services(conf, None, tmp_path / "workspace.yaml")}
    assert found["recovery"].once
    assert "recovery" in found["daemon"].after
    assert found["code_server"].after == ()
    assert found["gateway"].environment[MARKER] == str(conf.data_dir)


def test_the_code_server_survives_a_night_without_heartbeats(conf, tmp_path):
    """A laptop sleeps, and Dagster does not restart a code server that ended meanwhile."""
    (command,) = (each.command for each in services(conf, None, tmp_path) if each.name == "code_server")
    assert int(command[command.index("--heartbeat-ttl") + 1]) > 24 * 3600


def test_the_readiness_of_dagster_is_checked_by_one_client(conf, tmp_path, monkeypatch):
    class Client:
        made = 0

        def __init__(self, *_):
            Client.made += 1

        def is_location_loaded(self):
            return True

        def are_daemons_healthy(self):
            raise UnreachableError("no Dagster answers")

    monkeypatch.setattr("lakesync.cli.up.services.DagsterClient", Client)
    ready = {service.name: service.ready for service in services(conf, None, tmp_path / "workspace.yaml")}
    assert [ready[name]() for name in ("dagster", "daemon", "dagster", "daemon")] == [True, False, True, False]
    assert Client.made == 1
