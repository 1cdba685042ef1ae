"""The secrets that `lakesync up` generates if none are configured, in the file `secrets.json` of the data folder.

Commands on the same machine read them, for example to sign a token for a running gateway.
"""

from __future__ import annotations

import json
import os
import secrets
from pathlib import Path

NAMES = ("jwt_secret", "service_token", "secret_key", "spark_token")
"""The generated secrets: for clients' tokens, internal routes, stored connector settings, and Spark Connect."""


def read_secrets(folder: Path) -> dict[str, str]:
    """Return the secrets in a data folder by name; empty if none were generated."""
    path = folder / "secrets.json"
    existing: dict[str, str] = json.loads(path.read_text("utf-8")) if path.exists() else {}
    return existing


def ensure_secrets(folder: Path) -> dict[str, str]:
    """Return the secrets in a data folder by name, after generating those that are missing."""
    existing = read_secrets(folder)
    complete = {name: existing.get(name) or secrets.token_hex(32) for name in NAMES}
    if complete != existing:
        descriptor = os.open(folder / "secrets.json", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            json.dump(complete, file)
    return complete
