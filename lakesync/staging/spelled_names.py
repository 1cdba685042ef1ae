"""How tables and columns are spelled, once a namespace of the lake: the same statements in every store."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from lakesync.staging.asking import Asking

_PUT = (
    "INSERT INTO spelled_name (gateway, namespace, folded, spelled) VALUES (?, ?, ?, ?)"
    " ON CONFLICT (namespace, folded) DO NOTHING"
)
_GET = "SELECT folded, spelled FROM spelled_name WHERE ? <> '' AND namespace = ? AND folded IN "
_AT_ONCE = 500


class SpelledNamesView(Asking):
    """The part of a `View` that knows them."""

    def spelled_names(self, namespace: str, names: Collection[str]) -> dict[str, str]:
        """Return how names are spelled in a namespace, by their folded forms; unknown ones are absent.

        Args:
            namespace: of the state tables.
            names: tables, and columns as `table.column`, in any spelling.
        """
        folded = sorted({name.lower() for name in names})
        found: dict[str, str] = {}
        for start in range(0, len(folded), _AT_ONCE):
            some = folded[start : start + _AT_ONCE]
            found.update(self._ask(f"{_GET}({', '.join('?' * len(some))})", namespace, *some))
        return found


class SpelledNamesCommit(SpelledNamesView):
    """The part of a `Commit` that adds some."""

    def spell_names(self, namespace: str, names: Collection[str]) -> Mapping[str, str]:
        """Add names that a namespace does not have in any spelling; how all of them are spelled, by folded forms.

        The table's key is the lock: of two commits that add a name at once, the second one waits for the first.
        """
        known = self.spelled_names(namespace, names)
        missing = sorted(name for name in names if name.lower() not in known)
        for name in missing:
            self._ask(_PUT, namespace, name.lower(), name)
        return self.spelled_names(namespace, names) if missing else known
