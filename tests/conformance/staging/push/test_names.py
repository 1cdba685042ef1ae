"""`NameView` and `NameCommit` of every staging store: one spelling of each name in a namespace of the lake."""

from __future__ import annotations

from tests.conformance.calls import read


def spell(store, *names, namespace="tables"):
    return store.submit("g", lambda commit: dict(commit.add_spellings(namespace, names))).result()


def spelled(store, *names, namespace="tables"):
    return dict(read(store, lambda view: view.name_spellings(namespace, names)))


def test_the_first_spelling_of_a_name_is_kept_over_a_restart(place, store, book):
    assert spell(store, "Notes", "Notes.Title") == {"notes": "Notes", "notes.title": "Notes.Title"}
    assert spell(store, "NOTES", "tasks") == {"notes": "Notes", "tasks": "tasks"}
    store = place.reopen(store, book)
    assert spelled(store, "nOtes", "tasks", "unknown") == {"notes": "Notes", "tasks": "tasks"}


def test_each_namespace_has_its_own_spellings(store):
    spell(store, "Notes")
    spell(store, "notes", namespace="other")
    assert spelled(store, "notes") == {"notes": "Notes"}
    assert spelled(store, "notes", namespace="other") == {"notes": "notes"}


def test_more_names_than_one_statement_takes_are_all_found(store):
    names = [f"T{number}" for number in range(1_201)]
    assert spell(store, *names) == spelled(store, *names) == {name.lower(): name for name in names}
