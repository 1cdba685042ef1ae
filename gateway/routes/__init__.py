"""The HTTP routes, one module for each subject; `create_app` includes their routers."""

from gateway.routes import (
    actions,
    checkpoint,
    connectors,
    console,
    dead_letters,
    docs,
    explain,
    flush,
    health,
    internal,
    metrics,
    peek,
    rows,
    rules,
    schema,
    settings,
    sync,
)

ROUTERS = (
    sync.router,  # first: routes are tried in this order, and clients push and pull most
    peek.router,
    actions.router,
    checkpoint.router,
    schema.router,
    rules.router,
    settings.router,
    connectors.router,
    flush.router,
    metrics.router,
    explain.router,
    rows.router,
    dead_letters.router,
    health.router,
    docs.router,
    internal.router,
    console.router,
)
