"""What the steps of one run share besides connections: each gateway's positions, and what the run continued without.

Dagster creates one for each run, as the resource `run_state`.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from lakesync.model.errors import ConfigurationError
from lakesync.model.hlc import wall_of
from lakesync.staging.head import MAIN_SHARD
from lakesync.staging.shards import shard_map

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from pyspark.sql import SparkSession

    from lakehouse.table_definitions import LakeNames
    from lakehouse.tables.increments import MergeReport
    from lakesync.config import Config
    from lakesync.staging.records import CutPoint
    from lakesync.staging.store.pipeline import PipelineStore


class SetAside(NamedTuple):
    """A failure in spite of which the run continued. Its last step fails for it."""

    what: str
    """What was not done. The text is the same for the same fault."""
    description: str
    """`what`, and the error."""
    gateway: str | None
    """The gateway that was not flushed, if that was the failure."""


class Unmerged(NamedTuple):
    """A state table that the run could not merge."""

    reason: str
    gateways: frozenset[str] | None
    """Gateways whose deltas were not merged; None: all."""

    def delays(self, gateway: str) -> bool:
        """Return whether a gateway's rows of the table are not up to date."""
        return self.gateways is None or gateway in self.gateways


class RunState:
    """The positions that all steps of a run agree on. Each is read once, when a step first needs it."""

    def __init__(
        self,
        config: Config,
        names: LakeNames,
        spark: Callable[[], SparkSession],
        store: Callable[[], PipelineStore],
        now_ms: Callable[[], int],
    ) -> None:
        """Read nothing yet.

        Args:
            config: names the namespaces and shards.
            names: catalogue and namespaces of the lake's tables.
            spark: returns the run's session.
            store: returns the staging store.
            now_ms: returns server wall time in milliseconds.
        """
        self._config = config
        self._names = names
        self._spark = spark
        self._store = store
        self._now_ms = now_ms
        self._flushed: dict[str, int] | None = None
        self._flushed_by_shard: dict[str, dict[str, int]] = {}
        self._cut_points: dict[str, CutPoint] = {}
        self.set_aside: list[SetAside] = []
        self.merged: dict[tuple[str, str], MergeReport] = {}
        """`(namespace, table)` → what this run merged into a state table; no entry for other tables."""
        self.unmerged: dict[tuple[str, str], Unmerged] = {}
        """`(namespace, table)` → why this run continued without a state table."""
        self.erased: dict[str, dict[str, int]] = {}
        """Asset of a backend beyond the lake → the deltas and rows that this run erased there."""
        self.faults: dict[str | None, list[str]] = {}
        """Gateway → faults that checks of this run found; None: of all gateways. They delay its checkpoint."""
        self.doubted: set[str | None] = set()
        """Gateways with faults in their history; None: all. Their deltas are not merged."""

    def names_of(self, gateway: str) -> LakeNames:
        """Return the lake's names with the state tables of a gateway.

        Raises:
            ConfigurationError: its rows are in another namespace than the configuration says.
            LakeUnavailableError: Spark cannot be reached.
        """
        moved = self._moved.get(gateway)
        if moved is not None:
            raise ConfigurationError(
                f"the rows of gateway {gateway!r} are in the lake's namespace {moved!r}, and it is configured for "
                f"{self._config.namespaces.of(gateway)!r}: a gateway keeps the namespace that it was created with. Put "
                f"gateways.{gateway}.namespace back, or create another gateway"
            )
        return self._names.in_namespace(self._config.namespaces.own.get(gateway, ""))

    def gateways_in(self, namespace: str) -> list[str]:
        """Return the gateways whose rows are in a namespace; `""` is the shared one.

        A gateway whose rows are in another namespace than the configured one is in neither.

        Raises:
            StagingUnavailableError: the staging store cannot be reached.
            LakeUnavailableError: Spark cannot be reached.
        """
        return [each for each in self._store().gateways() if self._is_in(namespace, each)]

    def note_cut_points(self) -> None:
        """Read the cut point of each gateway. Call it before a flush, after which each can have a checkpoint there.

        Raises:
            StagingUnavailableError: the staging store, or one of its shards, cannot be reached.
        """
        store = self._store()
        self._cut_points = {gateway: store.cut_point(gateway) for gateway in store.gateways()}

    def drop_cut_point(self, gateway: str) -> None:
        """Make no checkpoint of a gateway in this run, because it could not be flushed."""
        self._cut_points.pop(gateway, None)

    def left_out(self, gateway: str, tables: Iterable[str]) -> str | None:
        """Return why a gateway gets no checkpoint in this run; None if it gets one.

        Args:
            gateway: the gateway's id.
            tables: the tables that it has rows of.
        """
        namespace = self._config.namespaces.own.get(gateway, "")
        reasons = [*self.faults.get(None, []), *self.faults.get(gateway, [])]
        for table in sorted(tables):
            unmerged = self.unmerged.get((namespace, table))
            if unmerged is not None and unmerged.delays(gateway):
                reasons.append(f"its table {table} was not merged ({unmerged.reason})")
        return "; ".join(reasons) or None

    def cut_points(self) -> Mapping[str, CutPoint]:
        """Return the cut point of each gateway: read before the run's flush, or of gateways without unflushed deltas.

        Raises:
            StagingUnavailableError: the staging store, or one of its shards, cannot be reached.
        """
        if not self._cut_points:
            self.note_cut_points()
            for backlog in self._store().backlog():
                if backlog.deltas:
                    self._cut_points.pop(backlog.gateway, None)
        return self._cut_points

    def forget_positions(self) -> None:
        """Read all positions again at their next use, because an erasure has added later arrivals."""
        self._cut_points, self._flushed = {}, None

    def settled_ms(self) -> int:
        """Return the server wall time up to which the lake has all acknowledged deltas after this run's flush, in ms.

        Raises:
            StagingUnavailableError: the staging store cannot be reached.
        """
        cut_points, store = self.cut_points(), self._store()
        moments = [wall_of(point.arrival) for point in cut_points.values()]
        if cut_points.keys() != set(store.gateways()):
            unflushed = [each for each in store.backlog() if each.gateway not in cut_points]
            moments += [each.oldest_ms for each in unflushed if each.oldest_ms is not None]
        return min(moments, default=self._now_ms())

    def flushed(self, *, anew: bool = False) -> dict[str, int]:
        """Return gateway → the arrival up to which its deltas are in the lake.

        After this run's flush that is its cut point, so that the run's tables and checkpoints agree.

        Args:
            anew: whether to read it again.

        Raises:
            LakeUnavailableError: Spark cannot be reached.
        """
        if anew or self._flushed is None:
            from lakehouse.history.flush import flushed_arrivals

            self._flushed = self._at_cut_points(flushed_arrivals(self._spark(), self._names))
            self._flushed_by_shard = {}
        return self._flushed

    def flushed_of(self, table: str, namespace: str = "") -> dict[str, int]:
        """Return `flushed` for the rows of one state table.

        It has the namespace's gateways, each by the table's shard, without those with faults in their history.

        Args:
            table: the table.
            namespace: the state table's namespace; empty for the shared one.

        Raises:
            LakeUnavailableError: Spark cannot be reached.
        """
        flushed = self._flushed_in_shard_of(table)
        return {
            gateway: arrival
            for gateway, arrival in flushed.items()
            if self._is_in(namespace, gateway) and not self.doubted & {gateway, None}
        }

    def _flushed_in_shard_of(self, table: str) -> dict[str, int]:
        shards = shard_map(self._config.shard_config)
        if shards is None:
            return self.flushed()
        shard = shards.of(table)
        if shard not in self._flushed_by_shard:
            from lakehouse.history.flush import flushed_arrivals

            streams = (shard, MAIN_SHARD) if shard == shards.default else (shard,)
            arrivals = flushed_arrivals(self._spark(), self._names, streams)
            self._flushed_by_shard[shard] = self._at_cut_points(arrivals)
        return self._flushed_by_shard[shard]

    def _at_cut_points(self, arrivals: dict[str, int]) -> dict[str, int]:
        return {
            gateway: self._cut_points[gateway].arrival if gateway in self._cut_points else arrival
            for gateway, arrival in arrivals.items()
        }

    def _is_in(self, namespace: str, gateway: str) -> bool:
        return self._config.namespaces.own.get(gateway, "") == namespace and gateway not in self._moved

    @cached_property
    def _moved(self) -> dict[str, str]:
        """Gateway → the namespace of its rows, if it is not the configured one."""
        from lakehouse.namespace_assignment import moved_gateways

        def has_begun(gateway: str) -> bool:
            return self._store().newest_checkpoint(gateway) is not None

        return moved_gateways(self._spark(), has_begun, self._config.namespaces, self._names)
