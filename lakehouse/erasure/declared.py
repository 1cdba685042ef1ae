"""Lists the backends that an erasure must change: those of destinations, flows, tiers and migrations of a project.

The steps of the asset `erasure` call it. Importing it loads neither Spark nor a driver.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lakehouse.backends.declared import flow_tasks, follower_task
from lakesync.adapters.backend_config import SingleBackend, resolve_backend, single_backends
from lakesync.config.backends import LAKE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lakehouse.backends.declared import DestinationTarget
    from lakehouse.erasure.backends import BackendErasure
    from lakesync.adapters.redaction import RedactionRequest
    from lakesync.config import Config
    from lakesync.config.backends import DeclaredFlow
    from lakesync.staging.store.pipeline import GatewayStore


def target_erasures(
    each: DestinationTarget, store: GatewayStore, requests: tuple[RedactionRequest, ...]
) -> list[BackendErasure]:
    """Return the erasure at one adapter of a destination and at the cold tiers behind it.

    Args:
        each: the destination's adapter.
        store: the staging store, which has the schemas.
        requests: what is erased.
    """
    from lakehouse.erasure.backends import BackendErasure

    target, schemas = each.target, follower_task(store, each).schemas
    return [BackendErasure(SingleBackend(target.name, target.uri), requests, schemas, target.cold)]


def flow_erasures(
    config: Config,
    name: str,
    declared: DeclaredFlow,
    store: GatewayStore,
    requests: tuple[RedactionRequest, ...],
) -> list[BackendErasure]:
    """Return the erasures at the adapters that a flow writes and reads, except the lake.

    Args:
        config: the project's configuration, which declares the backends.
        name: the flow's name.
        declared: the flow's declaration.
        store: the staging store, which has the schemas.
        requests: what is erased.
    """
    from lakehouse.erasure.backends import BackendErasure

    tasks = flow_tasks(config, store, name, declared) if declared.to != LAKE else []
    written = [
        BackendErasure(
            SingleBackend(task.target.name, task.target.uri), requests, task.schemas, task.target.cold, task.row_filter
        )
        for task in tasks
    ]
    return [*written, *backend_erasures(config, (declared.source,), store, requests)]


def backend_erasures(
    config: Config, backends: Sequence[str], _store: GatewayStore, requests: tuple[RedactionRequest, ...]
) -> list[BackendErasure]:
    """Return the erasures at every adapter of some backends, each once, except the lake.

    Args:
        config: the project's configuration, which declares the backends.
        backends: names of backends in the configuration.
        requests: what is erased.
    """
    from lakehouse.erasure.backends import BackendErasure

    found = (each for name in backends if name != LAKE for each in single_backends(resolve_backend(config, name)))
    return [BackendErasure(each, requests) for each in {each.name: each for each in found}.values()]
