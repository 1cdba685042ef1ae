"""Every operation of the server, one module a family."""

from gateway.operations import Operation
from gateway.routes import admin, checkpoint, health, internal, metrics, openapi, rules, schema, sync

OPERATIONS: tuple[Operation, ...] = (
    *sync.OPERATIONS,
    *checkpoint.OPERATIONS,
    *schema.OPERATIONS,
    *rules.OPERATIONS,
    *admin.OPERATIONS,
    *metrics.OPERATIONS,
    *health.OPERATIONS,
    *openapi.OPERATIONS,
    *internal.OPERATIONS,
)
