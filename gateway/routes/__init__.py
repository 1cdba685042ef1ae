"""The HTTP routes, one module for each subject; `create_app` includes their routers."""

from gateway.routes import (
    actions,
    checkpoint,
    configuration,
    flush,
    health,
    internal,
    metrics,
    pages,
    peek,
    rows,
    sync,
)

ROUTERS = (
    sync.router,  # first: routes are tried in this order, and clients push and pull most
    peek.router,
    actions.router,
    checkpoint.router,
    configuration.router,
    flush.router,
    metrics.router,
    rows.router,
    health.router,
    internal.router,
    pages.router,
)
