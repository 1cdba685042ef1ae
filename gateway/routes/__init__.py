"""The HTTP routes, one module for each subject; `create_app` includes their routers (`ROUTERS`)."""

from gateway.routes import actions, checkpoint, configuration, flush, internal, monitoring, pages, rows, sync

ROUTERS = (
    sync.router,  # first: routes are tried in this order, and clients push and pull most
    actions.router,
    checkpoint.router,
    configuration.router,
    flush.router,
    monitoring.router,
    rows.router,
    internal.router,
    pages.router,
)
