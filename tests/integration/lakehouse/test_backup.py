"""A backup by the recipe in docs/durability.md has every table, although the pipeline commits meanwhile."""

import shutil
import subprocess
from datetime import date
from pathlib import Path

import pytest

from lakehouse.sessions import session
from lakehouse.table_creation import set_properties
from lakehouse.table_definitions import LakeNames
from lakesync.cli.up.spark_server import catalogue
from lakesync.model.delta import extract_delta
from tests.lake_support import arrivals, fill

DURABILITY = Path(__file__).parents[3] / "docs" / "durability.md"

pytestmark = pytest.mark.timeout(300)  # Spark's first queries take a minute on a busy machine


def recipe(backup):
    """The lines of the recipe after `lakesync flush`, with another folder for the backup."""
    block = DURABILITY.read_text("utf-8").partition("## Backing up")[2].partition("```sh\n")[2].partition("```")[0]
    flush, *lines = block.splitlines()
    assert flush == "lakesync flush"
    return [line.replace("/backup", str(backup)) for line in lines]


def test_a_backup_has_every_table_although_the_pipeline_commits_meanwhile(spark_server, tmp_path):
    data, backup = tmp_path / "lakesync-data", tmp_path / "backup"
    for folder in (data, backup, tmp_path / "schemas"):
        folder.mkdir()
    for file in (data / "secrets.json", tmp_path / "lakesync.toml", tmp_path / "rules.json"):
        file.touch()
    lake = {
        "catalog": "backed_up",
        "catalog_uri": f"sqlite:///{data / 'catalog.db'}",
        "warehouse": (data / "warehouse").as_uri(),
    }
    config, names = spark_server["config"].replace(lake=lake), LakeNames("backed_up", "system")
    delta = extract_delta(None, {"n": 1}, table="t", row_id="r", client_id="c", hlc=1 << 16)
    with session(config) as spark:
        for key, value in catalogue(config).items():
            spark.conf.set(key, value)
        fill(spark, names, [(arrivals(date(2026, 11, 1), 1)[0], (delta,))])
        for line in recipe(backup):
            if line.startswith("cp -a"):  # it takes long, so many commits come before its end
                for number in range(60):
                    set_properties(spark, names.deltas, {"number": str(number)})
            subprocess.run(["bash", "-euc", line], cwd=tmp_path, check=True)

        shutil.rmtree(data / "warehouse")
        shutil.copytree(backup / "warehouse", data / "warehouse")
        shutil.copy(backup / "catalog.db", data / "catalog.db")
        assert spark.table(names.deltas).count() == 1
