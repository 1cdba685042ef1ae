"""A table with a column of each type."""

TODOS = {
    "table": "todos",
    "columns": [
        {"name": "title", "type": "string"},
        {"name": "done", "type": "boolean"},
        {"name": "n", "type": "number"},
        {"name": "tags", "type": "json"},
    ],
}
