"""Room for connections: each is an open file, of which a process may have 1,024 unless it asks for more."""

from __future__ import annotations

import resource

import structlog

log = structlog.get_logger("gateway")

_OTHERS = 1024
"""HTTP connections, the store's files and everything else."""


def allow_connections(most: int) -> None:
    """Let this process hold so many WebSocket connections; where the system does not, the log says so."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = most + _OTHERS
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return
    if hard != resource.RLIM_INFINITY and hard < wanted:
        log.warning(
            "the system allows fewer open files than websocket_connections needs: raise its hard limit",
            allowed=hard,
            needed=wanted,
        )
        wanted = hard
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
