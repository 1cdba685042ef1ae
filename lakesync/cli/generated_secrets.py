"""The secrets that `lakesync up` generates if none are configured, in a file of the data folder."""

from __future__ import annotations

import json
import os
import secrets
from pathlib import Path

NAMES = ("jwt_secret", "service_token", "secret_key", "spark_token")


def read_secrets(folder: Path) -> dict[str, str]:
    """Return the secrets in a data folder; empty if none were generated."""
    path = folder / "secrets.json"
    found: dict[str, str] = json.loads(path.read_text("utf-8")) if path.exists() else {}
    return found


def ensure_secrets(folder: Path) -> dict[str, str]:
    """Return the secrets in a data folder, after generating those that are missing."""
    found = read_secrets(folder)
    complete = {name: found.get(name) or secrets.token_hex(32) for name in NAMES}
    if complete != found:
        descriptor = os.open(folder / "secrets.json", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            json.dump(complete, file)
    return complete
