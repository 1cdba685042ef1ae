"""Hides passwords in URIs, and in messages that contain URIs, before they are shown."""

from __future__ import annotations

import re

SECRET_NAME = re.compile("pass|secret|token|credential|access.?key", re.IGNORECASE)
"""Names of settings and of query options that have secrets as values."""

_PASSWORD = re.compile(r"(://[^:@/?#]*):.*@", re.DOTALL)
_OPTION = re.compile(r"(?<=[?&])([^=&#]*)=([^&]*)")


def without_password(text: str) -> str:
    """Replace the password and secret options of a URI with `…`.

    In a message that contains a URI, text after it may be replaced too.

    Args:
        text: a URI, or a message with at most one.
    """
    return _OPTION.sub(_masked, _PASSWORD.sub(r"\1:…@", text))


def _masked(option: re.Match[str]) -> str:
    return f"{option[1]}=…" if SECRET_NAME.search(option[1]) else option[0]
