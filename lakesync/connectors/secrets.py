"""Encrypts ("seals") the secrets of connectors, such as passwords, and opens them when a connector is used.

Instead of a secret, a connector may have a reference to a variable or file of the server. A gateway is one app's stream
of changes. Its admins register connectors, and the operator of the server lists the references that they may use
(`allowed_references`), so that no admin can read a secret of the operator or of another gateway. `Connectors`
(`lakesync.connectors.registry`) calls this module.
"""

from __future__ import annotations

import base64
import fnmatch
import hashlib
import itertools
import re
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import Any

import msgspec
from cryptography.fernet import Fernet, InvalidToken, MultiFernet

from lakesync.model.errors import ConfigurationError, ValidationError
from lakesync.model.secrets import REFERENCE_PREFIXES, read_reference

MIN_KEY_CHARS = 32
"""Number of characters of a key for sealing, at least."""

_SEALED = "sealed"
"""The field of a stored secret with its ciphertext."""
_GATEWAY = "{gateway}"
"""Is replaced by the gateway id in patterns of allowed references."""
_PLACEHOLDER = re.compile(r"\{gateway\}|[*?\[\]]")
"""The parts of patterns that match other text."""
_IDENTITY = "google:"
"""Prefix of the patterns that allow the use of the server's Google identity: the account of its process in Google's
cloud, which may read BigQuery."""


class Secrets:
    """Seals secrets with the current key, opens them with the current or the previous key, and resolves references.

    A sealed secret is a Fernet token (AES-128-CBC with HMAC-SHA256). It can only be opened for the gateway, connector
    and setting that it was sealed for.
    """

    def __init__(self, keys: Sequence[str] = (), references: Sequence[str] = ()) -> None:
        """Set the keys and the allowed references.

        Args:
            keys: the current key, then older ones; without keys, literal secrets are rejected.
            references: patterns of allowed references, `env:NAME` and `file:/PATH` with the wildcards of `fnmatch`, and
                `google:GATEWAY` (see `lends_identity`). `{gateway}` is replaced by the gateway id.

        Raises:
            ConfigurationError: a key is shorter than MIN_KEY_CHARS, or one or two patterns do not separate gateways.
        """
        if any(len(key) < MIN_KEY_CHARS for key in keys):
            raise ConfigurationError(
                f"secret_key has fewer than {MIN_KEY_CHARS} characters: make one with `openssl rand -hex 32`"
            )
        for pattern in references:
            _check_pattern(pattern)
        for one, other in itertools.combinations((each for each in references if _GATEWAY in each), 2):
            _check_pair(one, other)
        ciphers = [_cipher(key) for key in keys]
        self._current = ciphers[0] if ciphers else None
        self._all = MultiFernet(ciphers) if ciphers else None
        self.has_older_key = len(ciphers) > 1
        """Whether secrets may be sealed with a key that is not the current one."""
        self._references = tuple(references)

    def seal(self, gateway: str, connector: str, setting: str, value: str) -> Any:
        """Return what to store for a secret: a reference unchanged, or `{"sealed": TOKEN}` for a literal secret.

        Args:
            gateway: the gateway id.
            connector: the connector's name.
            setting: the setting's name.
            value: the literal secret or the reference.

        Raises:
            ValidationError: the reference is not allowed, or the value is a literal and there is no key.
        """
        where = f"{setting} of connector {connector!r}"
        if value.startswith(REFERENCE_PREFIXES):
            if fault := self._reference_fault(gateway, where, value):
                raise ValidationError(fault)
            return value
        if self._current is None:
            raise ValidationError(
                f"{where} is a secret and this server has no key to seal it: set LAKESYNC_SECRET_KEY, "
                "or give a reference, env:NAME or file:PATH"
            )
        plaintext = msgspec.json.encode((gateway, connector, setting, value))
        return {_SEALED: self._current.encrypt(plaintext).decode()}

    def check_file(self, gateway: str, connector: str, setting: str, path: str) -> None:
        """Check that a setting may name a file on the server, by the rules for references to files.

        Args:
            gateway: the gateway id.
            connector: the connector's name.
            setting: the setting's name.
            path: the file's path.

        Raises:
            ConfigurationError: the file is not allowed.
        """
        if fault := self._reference_fault(gateway, f"{setting} of connector {connector!r}", f"file:{path}"):
            raise ConfigurationError(fault)

    def lends_identity(self, gateway: str) -> bool:
        """Return whether the operator allows a gateway's connectors to use this server's Google identity.

        A pattern that starts with `google:` and matches `google:GATEWAY` allows it. More general patterns do not,
        because the identity is not a secret that a connector refers to.
        """
        return any(
            pattern.startswith(_IDENTITY) and _matches(f"{_IDENTITY}{gateway}", pattern, gateway)
            for pattern in self._references
        )

    def reveal(self, gateway: str, connector: str, setting: str, stored: Any) -> str:
        """Return the secret in plain text.

        Args:
            gateway: the gateway id.
            connector: the connector's name.
            setting: the setting's name.
            stored: the value that `seal` returned.

        Raises:
            ConfigurationError: the secret cannot be opened, or its reference is not allowed or does not exist.
        """
        where = f"{setting} of connector {connector!r}"
        if isinstance(stored, str):
            if fault := self._reference_fault(gateway, where, stored):
                raise ConfigurationError(fault)
            return read_reference(where, stored, Path("/"))
        try:
            if self._all is None:
                raise InvalidToken
            opened = msgspec.json.decode(self._all.decrypt(stored[_SEALED]), type=tuple[str, str, str, str])
        except InvalidToken:
            raise ConfigurationError(
                f"{where} was sealed with another key: set LAKESYNC_SECRET_KEY or LAKESYNC_SECRET_KEY_PREVIOUS to that "
                "one, or register the connector again"
            ) from None
        if opened[:3] != (gateway, connector, setting):
            raise ConfigurationError(
                f"{where} was sealed for another gateway, connector or setting: register the connector again"
            )
        return opened[3]

    def reseal(self, stored: Any) -> Any:
        """Return a secret sealed with the current key; references and unreadable secrets stay as they are."""
        if isinstance(stored, str) or self._current is None or self._all is None:
            return stored
        token = stored[_SEALED].encode()
        try:
            self._current.decrypt(token)
        except InvalidToken:
            try:
                return {_SEALED: self._all.rotate(token).decode()}
            except InvalidToken:
                import structlog  # not above: every task that polls would import it

                structlog.get_logger(__name__).warning(
                    "a connector's secret cannot be opened with any key of this server"
                )
        return stored

    def _reference_fault(self, gateway: str, where: str, reference: str) -> str | None:
        """Return an error message if a gateway may not use a reference, otherwise None.

        It may not if no pattern allows the reference, or if that is a file whose path is not normalised.
        """
        is_plain = not reference.startswith("file:") or _is_plain(reference.removeprefix("file:"))
        if is_plain and any(_matches(reference, pattern, gateway) for pattern in self._references):
            return None
        allowed = ", ".join(pattern.replace(_GATEWAY, gateway) for pattern in self._references) or "none"
        return (
            f"{where} refers to {reference!r}, which this server does not allow: allowed are {allowed} "
            "(allowed_references in [connectors])"
        )


def _matches(reference: str, pattern: str, gateway: str) -> bool:
    """Return whether a pattern allows a gateway's reference.

    In a pattern for variables with `{gateway}`, `*` does not match `_`, because gateway ids may contain `_`. So with
    `CONNECTOR_{gateway}_*`, the variable `CONNECTOR_shop_eu_TOKEN` belongs to the gateway `shop_eu`, not to `shop`.
    """
    if not pattern.startswith("env:") or _GATEWAY not in pattern:
        return fnmatch.fnmatchcase(reference, pattern.replace(_GATEWAY, gateway))
    parts = [
        "[A-Za-z0-9]+" if part == "*" else re.escape(gateway if part == _GATEWAY else part)
        for part in re.split(r"(\*|\{gateway\})", pattern)
    ]
    return re.fullmatch("".join(parts), reference) is not None


def _check_pattern(pattern: str) -> None:
    """Check that with a pattern, no variable or file can belong to two gateways.

    The text on both sides of the first `{gateway}` must show where the id starts and ends. Gateway ids consist of
    letters, digits, `_` and `-`.

    - In a pattern for variables, `*` does not match `_`, so the number of `_` on each side is known. The id must be
      followed by `_` or the end, and a `*` before the id must be separated from it by `_`.
    - In other patterns, `*` matches every character. There must be no wildcard before the id, and the next character
      must be one that ids do not contain.

    Raises:
        ConfigurationError: the pattern does not separate gateways.
    """
    before, gateway, after = pattern.partition(_GATEWAY)
    if not gateway:
        return
    if pattern.startswith("env:"):
        is_separate = (
            after[:1] in ("", "_")
            and after.count("*") <= 1
            and "*" not in before.rpartition("_")[2]
            and not any(sign in pattern for sign in "?[]")
        )
    else:
        is_separate = not any(sign in before for sign in "*?[") and not re.match(r"[A-Za-z0-9_*?\[{-]", after)
    if not is_separate:
        raise ConfigurationError(
            f"allowed_references in [connectors] has {pattern!r}, which does not separate gateways: write "
            "env:PREFIX_{gateway}_* or file:/FOLDER/{gateway}/*"
        )


def _check_pair(one: str, other: str) -> None:
    """Check that no variable or file can belong to one gateway by a pattern, and to another gateway by another pattern.

    With `env:A_{gateway}` and `env:A_{gateway}_*`, the variable `A_shop_TOKEN` would belong to `shop_TOKEN` and `shop`.
    Two patterns separate gateways if no reference matches both, as their beginnings or ends show, or if both find the
    id in the same place.

    Args:
        one: a pattern with `{gateway}` that separates gateways by itself.
        other: another one.

    Raises:
        ConfigurationError: the pair does not separate gateways. Some pairs that would are rejected too.
    """
    texts, other_texts = _PLACEHOLDER.split(one), _PLACEHOLDER.split(other)  # between the wildcards
    ends_may_agree = _is_prefix(texts[-1][::-1], other_texts[-1][::-1])
    may_overlap = _is_prefix(texts[0], other_texts[0]) and ends_may_agree
    if may_overlap and one != other and _id_place(one) != _id_place(other):
        raise ConfigurationError(
            f"allowed_references in [connectors] has {one!r} and {other!r}, by which one secret could belong to two "
            "gateways: let them begin differently, such as env:A_{gateway}_* and env:B_{gateway}_*"
        )


def _is_prefix(one: str, other: str) -> bool:
    """Return whether one of two texts begins with the other."""
    return one.startswith(other) or other.startswith(one)


def _id_place(pattern: str) -> tuple[object, ...]:
    """Return a value that is equal for patterns that find the gateway's id in the same place of any reference.

    In a variable, the id is between a known number of `_` on each side; see `_check_pattern`. In other references it
    ends at the first character that ids do not contain.
    """
    before, _, after = pattern.partition(_GATEWAY)
    if not pattern.startswith("env:"):
        return (before,)
    after_id = after if _GATEWAY in after else after.count("_")
    return (before.count("_"), before.rpartition("_")[2], after_id)


def _cipher(key: str) -> Fernet:
    """Return the cipher of a key, which is hashed to the length that Fernet needs."""
    return Fernet(base64.urlsafe_b64encode(hashlib.sha256(b"lakesync connector secrets " + key.encode()).digest()))


def _is_plain(path: str) -> bool:
    """Return whether a path is absolute and normalised, so that a pattern can be compared with it."""
    return path.startswith("/") and ".." not in PurePosixPath(path).parts and str(PurePosixPath(path)) == path
