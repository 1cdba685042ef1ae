"""Secrets: hides them in URIs and messages, reads those given as references, and creates private files for them.

A *reference* in a setting names where the secret is: `env:NAME`, a variable, or `file:PATH`, a file. Configuration,
adapters, connectors and assets call `without_password` and `read_reference`. The staging store on SQLite, and the
commands that write to the data folder of `lakesync up`, create their files and folders here, because they contain
customers' data or secrets.
"""

from __future__ import annotations

import os
import re
import stat
import tempfile
from contextlib import suppress
from pathlib import Path

from lakesync.model.errors import ConfigurationError

SECRET_NAME = re.compile(
    "pass(?!file)|secret|token|credential|authorization|(?:access|account|api|private|sse).?key", re.IGNORECASE
)
"""Names of settings and of query options that have secrets as values. The value of `passfile` is a path."""

_PASSWORD = re.compile(r"(://[^:@/?#]*):.*@", re.DOTALL)
"""User and password of a URI. The password ends at the last `@`, because it may contain one."""
_OPTION = re.compile(r"(?<=[?&])([^=&#]*)=([^&]*)")
"""A query option of a URI: name and value."""
_HOST = r"(?:\[[^]@/]*\]|[^@/?:,\[]*)(?::\d*)?"
_POSTGRES_URL = re.compile(
    rf"postgres(?:ql)?://(?:[^][@/?#]*@)?{_HOST}(?:,{_HOST})*(?:/[^@?]*)?(?:\?(?:[^@=&]*=[^&]*(?:&|$))*)?"
)
"""A URL for libpq in which only values of options may have a further `@`. Ports are numbers."""
UMASK = stat.S_IRWXG | stat.S_IRWXO
"""The permissions of the group and of all other users. Every process that writes to the data folder sets them as its
umask, so that files that libraries create are private too."""


def without_password(text: str) -> str:
    """Replace the password and secret options of a URI with `…`.

    In a message that contains a URI, text after it may be replaced too.

    Args:
        text: a URI, or a message with at most one.
    """
    return _OPTION.sub(_masked, _PASSWORD.sub(r"\1:…@", text))


def is_readable_postgres_url(url: str) -> bool:
    """Return False if libpq or `urlsplit` would read a part of the password as a host, port, database or option.

    Their errors contain these. The cause is an @ or another reserved character that is not percent-encoded.
    """
    return _POSTGRES_URL.fullmatch(url) is not None


def has_credentials(uri: str) -> bool:
    """Return whether a URI has a user or password, or a secret option whose value is not a reference."""
    secrets = [match[2] for match in _OPTION.finditer(uri) if SECRET_NAME.search(match[1])]
    return "@" in uri or not all(value.startswith(REFERENCE_PREFIXES) for value in secrets)


REFERENCE_PREFIXES = ("env:", "file:")
"""The prefixes of references; a setting without them is a plain value."""


def read_reference(what: str, reference: str, folder: Path) -> str:
    """Return the value of a reference.

    Args:
        what: the name of the setting that contains the reference, for the message.
        reference: `env:NAME` or `file:PATH`; the caller has checked that it has one of these prefixes.
        folder: the folder to which relative paths refer: that of `lakesync.toml`.

    Raises:
        ConfigurationError: the variable is not set or is empty, or the file cannot be read or is no UTF-8 text.
    """
    kind, _, target = reference.partition(":")
    if kind == "env":
        value = os.environ.get(target)
        if not value:
            raise ConfigurationError(f"{what} refers to the variable {target}, which is not set.")
        return value
    try:
        return (folder / Path(target).expanduser()).read_text("utf-8").strip()
    except OSError as error:
        raise ConfigurationError(f"{what} refers to {target}: {error.strerror}.") from error
    except RuntimeError:
        raise ConfigurationError(f"{what} refers to {target}, but there is no such home folder.") from None
    except UnicodeDecodeError:
        raise ConfigurationError(f"{what} refers to {target}, which is no text in UTF-8.") from None


def make_private_folder(folder: Path) -> None:
    """Create a folder, or make an existing one private.

    Raises:
        OSError: the folder cannot be created, or belongs to another user.
    """
    folder.mkdir(0o700, parents=True, exist_ok=True)
    _remove_permissions(folder)


def make_private_file(path: Path) -> None:
    """Create an empty file, or make an existing one private.

    An existing file is not opened. To close it would end all POSIX locks that this process has on it, also SQLite's.

    Raises:
        OSError: it cannot be created, or belongs to another user.
    """
    with suppress(FileExistsError):
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
    _remove_permissions(path)


def replace_private_file(path: Path, content: bytes) -> None:
    """Replace a file as a whole: after a crash or an error it has its earlier content, or all of the new one.

    The new file is private.

    Args:
        path: the file, which need not exist; its folder must.
        content: the new content.

    Raises:
        OSError: the content cannot be written.
    """
    descriptor, scratch = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(descriptor)
        Path(scratch).replace(path)
    except BaseException:
        Path(scratch).unlink(missing_ok=True)
        raise


def _masked(option: re.Match[str]) -> str:
    """Return a URI's option, `name=value`, with `…` as its value if the name is that of a secret."""
    return f"{option[1]}=…" if SECRET_NAME.search(option[1]) else option[0]


def _remove_permissions(path: Path) -> None:
    """Remove the permissions of the group and of all other users."""
    mode = stat.S_IMODE(path.stat().st_mode)
    if mode & UMASK:
        path.chmod(mode & ~UMASK)
