"""The downloads of Spark's jars by `lakesync up`: interrupted, rejected, damaged."""

import errno
import shutil
from io import BytesIO

import pytest
import requests

from lakesync.cli.up import jars
from lakesync.model.errors import StartupError


def test_a_jar_that_cannot_be_downloaded_is_named(tmp_path, monkeypatch):
    def refuse(*_args, **_kwargs):
        raise requests.ConnectionError

    monkeypatch.setattr("requests.Session.request", refuse)
    with pytest.raises(StartupError, match=r"org.xerial:sqlite-jdbc:\S+ could not be downloaded \(ConnectionError\)"):
        jars.ensure(jars.JARS[1], tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("status", "body"), [(403, b"no"), (200, b"")], ids=["rejected", "without checksum"])
def test_a_response_that_is_not_a_jar_is_reported_with_the_path_for_it(tmp_path, monkeypatch, status, body):
    def respond(*_, **__):
        response = requests.Response()
        response.status_code, response.raw = status, BytesIO(body)
        return response

    monkeypatch.setattr("requests.Session.request", respond)
    jar = jars.JARS[1]
    with pytest.raises(StartupError, match=f"sent another response.*copy the file to {tmp_path / jar.filename}"):
        jars.ensure(jar, tmp_path)


def test_a_jar_that_cannot_be_read_is_downloaded_again(tmp_path, monkeypatch):
    jar, sha256 = jars.JARS[1], jars._sha256
    (tmp_path / jar.filename).write_bytes(b"on a bad sector")
    good = jars.ensure(jar, jars.cache_folder())

    def unreadable(path):
        if path.read_bytes() == b"on a bad sector":
            raise OSError(errno.EIO, "Input/output error")
        return sha256(path)

    monkeypatch.setattr(jars, "_sha256", unreadable)
    monkeypatch.setattr(jars, "_download", lambda jar, folder: shutil.copy(good, folder / jar.filename))
    assert jars.ensure(jar, tmp_path).read_bytes() == good.read_bytes()


def test_a_jar_with_another_checksum_is_rejected(tmp_path, monkeypatch):
    def download(jar, folder):
        path = folder / jar.filename
        path.write_bytes(b"something else")
        return path

    monkeypatch.setattr(jars, "_download", download)
    with pytest.raises(StartupError, match="SHA-256"):
        jars.ensure(jars.JARS[1], tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_damaged_jar_is_downloaded_again(tmp_path, monkeypatch):
    jar = jars.JARS[1]
    (tmp_path / jar.filename).write_bytes(b"half")
    good = jars.ensure(jar, jars.cache_folder())

    def download(jar, folder):
        return shutil.copy(good, folder / jar.filename)

    monkeypatch.setattr(jars, "_download", download)
    assert jars.is_cached(jar, jars.ensure(jar, tmp_path).parent)
