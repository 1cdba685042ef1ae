"""Every operation of the server, one module a family."""

from gateway.operations import Operation
from gateway.routes import (
    actions,
    admin,
    checkpoint,
    connectors,
    explain,
    health,
    internal,
    metrics,
    openapi,
    rules,
    schema,
    settings,
    sync,
)

OPERATIONS: tuple[Operation, ...] = (
    *sync.OPERATIONS,
    *actions.OPERATIONS,
    *checkpoint.OPERATIONS,
    *schema.OPERATIONS,
    *rules.OPERATIONS,
    *settings.OPERATIONS,
    *connectors.OPERATIONS,
    *admin.OPERATIONS,
    *metrics.OPERATIONS,
    *explain.OPERATIONS,
    *health.OPERATIONS,
    *openapi.OPERATIONS,
    *internal.OPERATIONS,
)
