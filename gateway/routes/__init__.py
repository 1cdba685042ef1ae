"""Every operation of the server, one module a family."""

from gateway.operations import Operation
from gateway.routes import (
    actions,
    admin,
    checkpoint,
    connectors,
    dead_letters,
    explain,
    health,
    internal,
    metrics,
    openapi,
    peek,
    rows,
    rules,
    schema,
    settings,
    sync,
)

OPERATIONS: tuple[Operation, ...] = (
    *sync.OPERATIONS,
    *peek.OPERATIONS,
    *actions.OPERATIONS,
    *checkpoint.OPERATIONS,
    *schema.OPERATIONS,
    *rules.OPERATIONS,
    *settings.OPERATIONS,
    *connectors.OPERATIONS,
    *admin.OPERATIONS,
    *metrics.OPERATIONS,
    *explain.OPERATIONS,
    *rows.OPERATIONS,
    *dead_letters.OPERATIONS,
    *health.OPERATIONS,
    *openapi.OPERATIONS,
    *internal.OPERATIONS,
)
