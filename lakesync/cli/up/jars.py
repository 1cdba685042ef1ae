"""The jars that Spark needs: pinned by SHA-256, downloaded once into a cache that projects share, and verified.

`lakesync up` calls `ensure_all` before it starts Spark, and `lakesync doctor` checks the cache. To fill it beforehand,
`python -m lakesync.cli.up.jars` downloads what is missing of `JARS`. The Python package `jgo` does the downloads.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from lakesync.model.errors import StartupError


@dataclass(frozen=True, slots=True)
class Jar:
    """A Maven artifact at one version, with the SHA-256 of its file."""

    group: str
    artifact: str
    version: str
    sha256: str

    @property
    def filename(self) -> str:
        """Its file name in the cache folder."""
        return f"{self.artifact}-{self.version}.jar"

    def __str__(self) -> str:
        return f"{self.group}:{self.artifact}:{self.version}"


JARS = (
    Jar(
        "org.apache.iceberg",
        "iceberg-spark-runtime-4.1_2.13",
        "1.12.0",
        "3123c3798af642dd537230923548e013ef41cc28b6626e5225808cf5670a0f82",
    ),
    Jar(
        "org.xerial",
        "sqlite-jdbc",
        "3.54.1.0",
        "f8dce420a6016278497f4f0560f65602b9db858de141b541cf91a4644ebe4639",
    ),
    Jar(
        "org.postgresql",
        "postgresql",
        "42.7.14",
        "73914527305a40cce504b0d3d90b23caf565136912d607ae8ae7c5895512332c",
    ),
)
"""The jars that Spark always needs: Iceberg, and the JDBC drivers of catalogue and staging."""

S3_JARS = (
    Jar(
        "org.apache.iceberg",
        "iceberg-aws-bundle",
        "1.12.0",
        "dd7e49ffa4ac9b215bed846581991259e3aec9bb2fa08d6cec029c46cd66d957",
    ),
)
"""Further jars for a warehouse on S3."""


def cache_folder() -> Path:
    """Return the cache folder: `lakesync/jars` in the user's cache folder."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "lakesync" / "jars"


def ensure(jar: Jar, folder: Path) -> Path:
    """Return the path of a jar, after downloading it if it is missing or damaged.

    Several processes may do this at the same time: the file appears complete, by a rename.

    Args:
        jar: the artifact.
        folder: the cache folder.

    Raises:
        StartupError: the download failed, the file has another SHA-256, or the disk is full.
    """
    path = folder / jar.filename
    if is_cached(jar, folder):
        return path
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder, prefix=".fetching-") as temporary:
            downloaded = _download(jar, Path(temporary))
            digest = _sha256(downloaded)
            if digest != jar.sha256:
                raise StartupError(
                    f"{jar} has SHA-256 {digest} instead of {jar.sha256}; something between this machine and the "
                    f"repository changed it. Retry on another network, or copy the right file to {path}."
                )
            downloaded.replace(path)
    except OSError as error:
        raise StartupError(
            f"{jar} could not be written to {folder}: {error.strerror or error}. Free disk space there, make the "
            "folder writable, or set XDG_CACHE_HOME to another one."
        ) from error
    return path


def ensure_all(*, s3: bool = False) -> list[Path]:
    """Return the paths of all jars in the cache folder, in the order of the class path, after downloading missing ones.

    Args:
        s3: whether to include the jars for a warehouse on S3.

    Raises:
        StartupError: a download failed, a file has another SHA-256, or the disk is full.
    """
    folder = cache_folder()
    return [ensure(jar, folder) for jar in (*JARS, *(S3_JARS if s3 else ()))]


def is_cached(jar: Jar, folder: Path) -> bool:
    """Return whether the folder has the jar with the pinned SHA-256. A file that cannot be read counts as damaged."""
    path = folder / jar.filename
    try:
        return path.is_file() and _sha256(path) == jar.sha256
    except OSError:
        return False


def main(arguments: list[str] | None = None) -> int:
    """Download missing or damaged jars; with `--cached`, exit with 1 if there are any.

    Args:
        arguments: command line arguments; None: those of the process.
    """
    parser = argparse.ArgumentParser(prog="python -m lakesync.cli.up.jars", description=__doc__)
    parser.add_argument("--quiet", action="store_true", help="print errors only")
    parser.add_argument("--cached", action="store_true", help="download nothing; exit 1 when a jar is missing")
    options = parser.parse_args(arguments)
    folder = cache_folder()
    if options.cached:
        return 0 if all(is_cached(jar, folder) for jar in JARS) else 1
    for jar in JARS:
        try:
            path = ensure(jar, folder)
        except StartupError as error:
            print(f"error: {error}", file=sys.stderr)
            return 1
        if not options.quiet:
            print(f"  {jar} ({path.stat().st_size / 1e6:.0f} MB)", file=sys.stderr)
    if not options.quiet:
        free = shutil.disk_usage(folder).free
        print(f"  jars are in {folder} ({free / 1e9:.0f} GB free)", file=sys.stderr)
    return 0


def _download(jar: Jar, folder: Path) -> Path:
    """Download a jar from Maven Central.

    Args:
        jar: the artifact.
        folder: where jgo puts the file: a temporary folder inside the cache folder.

    Raises:
        StartupError: the download failed.
        OSError: the file could not be written.
    """
    import requests
    from jgo.maven import MavenContext

    try:
        context = MavenContext(repo_cache=folder, timeout=60)
        component = context.project(jar.group, jar.artifact).at_version(jar.version)
        return Path(component.artifact().resolve())
    # the last three are jgo's, for a status that is not 200 and for a response that it cannot parse
    except (requests.RequestException, RuntimeError, ValueError, LookupError) as error:
        is_request = isinstance(error, requests.RequestException)
        reason = type(error).__name__ if is_request else "the repository or a proxy sent another response than the file"
        raise StartupError(
            f"{jar} could not be downloaded ({reason}). Check the network and the proxy's certificate "
            f"(REQUESTS_CA_BUNDLE), or copy the file to {folder.parent / jar.filename} by hand."
        ) from error


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


if __name__ == "__main__":
    raise SystemExit(main())
