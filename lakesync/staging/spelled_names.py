"""The table of the case in which tables and columns are spelled in each namespace of the lake, for both stores.

`side_tables` includes it; `engine.names` calls it, since the engines that read the lake ignore case.
"""

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
    """The method of a `View` that reads spellings."""

    def spelled_names(self, namespace: str, names: Collection[str]) -> dict[str, str]:
        """Return the stored spelling of names, by their lower-case forms; unknown names are absent.

        Args:
            namespace: of the state tables.
            names: tables, and columns as `table.column`, in any case.
        """
        folded = sorted({name.lower() for name in names})
        found: dict[str, str] = {}
        for start in range(0, len(folded), _AT_ONCE):
            some = folded[start : start + _AT_ONCE]
            found.update(self._ask(f"{_GET}({', '.join('?' * len(some))})", namespace, *some))
        return found


class SpelledNamesCommit(SpelledNamesView):
    """The method of a `Commit` that adds spellings."""

    def spell_names(self, namespace: str, names: Collection[str]) -> Mapping[str, str]:
        """Add names that a namespace does not have in any case; return the stored spelling of all, by lower-case form.

        The table's primary key is the lock: if two commits add a name at the same time, the second waits for the first.

        Args:
            namespace: of the state tables.
            names: tables, and columns as `table.column`.
        """
        known = self.spelled_names(namespace, names)
        missing = sorted(name for name in names if name.lower() not in known)
        for name in missing:
            self._ask(_PUT, namespace, name.lower(), name)
        return self.spelled_names(namespace, names) if missing else known
