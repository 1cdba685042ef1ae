"""Two clients of one file, as of two processes: one synchronises, and the other may do so after it."""

from __future__ import annotations

TODOS = {"table": "todos", "columns": [{"name": "title", "type": "string"}]}
NOTES = {"table": "notes", "columns": [{"name": "text", "type": "string"}, {"name": "n", "type": "number"}]}
SCHEMAS = [TODOS, NOTES]


def test_a_table_that_the_other_client_adds_is_synchronised(opened):
    """The first client is of an earlier version of the app, which does not have the table."""
    bob = opened("bob")
    earlier = opened(schemas=[TODOS])
    earlier.sync()
    later = opened()
    bob["notes"].insert({"text": "a", "n": 1}, row_id="bob's")
    bob.sync()
    later["notes"].insert({"text": "b"}, row_id="alice's")
    earlier.sync()
    earlier.close()
    bob["notes"].update("bob's", n=2)
    bob.sync()
    later.sync()
    bob.sync()
    later.close()
    again = opened()
    assert list(again["notes"].rows()) == list(bob["notes"].rows())
    assert again["notes"].get("bob's") == {"row_id": "bob's", "text": "a", "n": 2}
