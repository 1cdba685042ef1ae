"""An installed package with a connector type: module and metadata, as a gateway process finds it."""

from __future__ import annotations

from pathlib import Path

_MODULE = '''
import os, time
from pathlib import Path
from lakesync.connectors import ConnectorDescriptor, ConnectorType
from lakesync.model.errors import ForbiddenError
from lakesync.model.action_handlers import ActionDescriptor

SCHEMA = {
    "type": "object",
    "properties": {"journal": {"type": "string"}, "token": {"type": "string", "writeOnly": True}},
    "required": ["journal", "token"],
    "additionalProperties": False,
}


class Desk:
    """Writes a line into the journal for each action that it begins; `hold` waits for a file."""

    def __init__(self, config):
        self.settings = config.settings

    def execute_action(self, action, context):
        journal = Path(self.settings["journal"])
        with journal.open("a") as file:
            file.write(f"{action.action_id} {context.attempt} {os.getpid()}\\n")
        if action.action_type == "hold":
            gate, deadline = journal.with_suffix(".open"), time.monotonic() + 60
            while not gate.exists() and time.monotonic() < deadline:
                time.sleep(0.01)
        if "team" not in context.claims:
            raise ForbiddenError("no team")
        return {"attempt": context.attempt, "knows": self.settings["token"] == "t0p-s3cret"}


CONNECTOR = ConnectorType(
    ConnectorDescriptor("desk", "Desk", "A desk", "api", SCHEMA, {"type": "object"}),
    (ActionDescriptor("write", "Write a line"), ActionDescriptor("hold", "Write a line and wait")),
    Desk,
)
'''


def install(folder: Path) -> str:
    """Put the package into a folder; return the value of PYTHONPATH."""
    metadata = folder / "lakesync_desk-1.0.dist-info"
    metadata.mkdir(parents=True)
    (folder / "lakesync_desk.py").write_text(_MODULE)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: lakesync-desk\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("[lakesync.connectors]\ndesk = lakesync_desk:CONNECTOR\n")
    return str(folder)
