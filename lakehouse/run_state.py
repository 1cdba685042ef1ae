"""The state that the steps of one Dagster run share: each gateway's positions, and the deferred failures.

A gateway is one app's stream of deltas (changes of rows). A position is an arrival, the gateway's timestamp of a push.
Each gateway has two: the last arrival whose deltas are in the lake (flushed), and its cut point, at which the run makes
a *checkpoint*, the copy of all rows from which new clients start. A failure is deferred if it concerns one gateway or
table: the run continues with the others, and its last step fails. Dagster creates one `RunState` for each run, as the
resource `run_state`; the steps (`assets`) and the functions that they call use it.

The history is the Iceberg table of all flushed deltas. A state table has the current rows of one synced table, merged
from the history; it is in the Iceberg namespace that gateways share, or in that of a gateway. A shard is a staging
store (of the gateways) with some of the tables; a flush moves deltas from there to the lake.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from lakesync.model.errors import ConfigurationError
from lakesync.staging.head import MAIN_SHARD
from lakesync.staging.shards import shard_map

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from pyspark.sql import SparkSession

    from lakehouse.table_definitions import LakeNames
    from lakehouse.tables.merging import MergeReport
    from lakesync.config import Config
    from lakesync.staging.records import CutPoint
    from lakesync.staging.store.pipeline import PipelineStore


class DeferredFailure(NamedTuple):
    """A failure that did not stop the run. The run's last step fails because of it."""

    what: str
    """What was not done, for an operator. The same fault always has the same text, by which alerts recognise it."""
    description: str
    """`what`, and the error message."""
    gateway: str | None
    """Id of the gateway that could not be flushed; None for another failure."""


class Unmerged(NamedTuple):
    """A state table that the run could not merge."""

    reason: str
    gateways: frozenset[str] | None
    """Ids of the gateways whose deltas were not merged; None for all."""

    def delays(self, gateway: str) -> bool:
        """Return whether deltas of a gateway were not merged, which delays its checkpoint."""
        return self.gateways is None or gateway in self.gateways


class RunState:
    """The positions and failures of one run. Positions are read when a step first needs them, and then kept.

    So all steps see the same positions, although gateways accept pushes while the run continues. Only a step that moves
    them, such as a flush or an erasure, lets them be read again.
    """

    def __init__(
        self,
        config: Config,
        names: LakeNames,
        spark: Callable[[], SparkSession],
        store: Callable[[], PipelineStore],
        now_ms: Callable[[], int],
    ) -> None:
        """Create the state; nothing is read yet.

        Args:
            config: the project's configuration, with its namespaces and shards.
            names: catalogue and namespaces of the lake's tables.
            spark: returns the run's Spark session.
            store: returns the staging store.
            now_ms: returns the server wall time in milliseconds since 1970.
        """
        self._config = config
        self._names = names
        self._spark = spark
        self._store = store
        self._now_ms = now_ms
        self._flushed: dict[str, int] | None = None
        self._flushed_by_shard: dict[str, dict[str, int]] = {}
        self._cut_points: dict[str, CutPoint] | None = None
        self._cut_points_read_ms = 0
        self.deferred_failures: list[DeferredFailure] = []
        """Failures that did not stop the run, in the order in which they occurred."""
        self.merged: dict[tuple[str, str], MergeReport] = {}
        """`(namespace, table)` → what this run merged into that state table."""
        self.unmerged: dict[tuple[str, str], Unmerged] = {}
        """`(namespace, table)` → why this run could not merge that state table."""
        self.erased: dict[str, dict[str, int]] = {}
        """Asset of a copy outside the lake → `deltas` and `rows`: how many this run erased there. Such a copy is a
        destination (a database with current rows) or a flow (a copy of deltas)."""
        self.checked: set[str] = set()
        """Assets, by key, whose checks this run has made. A run that repeats a part of another one may lack some."""
        self.faults: dict[str | None, list[str]] = {}
        """Gateway → faults that checks of this run found, which delay its checkpoint. The key None means all gateways.
        """
        self.gateways_with_faulty_history: set[str | None] = set()
        """Gateways whose deltas are not merged in this run, because checks found faults in them. None means all."""

    def names_of(self, gateway: str) -> LakeNames:
        """Return the lake's names with the namespace that has a gateway's state tables.

        The first call of this method, `gateways_in` or `flushed_of` also records in the lake the configured namespace
        of each new gateway, because it must not change later. So no step can use a namespace that is not recorded.

        Raises:
            ConfigurationError: the gateway's rows are in another namespace than the configured one.
            LakeUnavailableError: Spark cannot be reached.
        """
        actual_namespace = self._misplaced.get(gateway)
        if actual_namespace is not None:
            raise ConfigurationError(
                f"the rows of gateway {gateway!r} are in the lake's namespace {actual_namespace!r}, and it is "
                f"configured for {self._config.namespaces.of(gateway)!r}: a gateway keeps the namespace that it was "
                f"created with. Put gateways.{gateway}.namespace back, or create another gateway"
            )
        return self._names.in_namespace(self._config.namespaces.own.get(gateway, ""))

    def gateways_in(self, namespace: str) -> list[str]:
        """Return the gateways whose rows are in a namespace; `""` is the shared one.

        A gateway whose rows are not in its configured namespace is left out; `names_of` raises an error for it.

        Raises:
            StagingUnavailableError: the staging store cannot be reached.
            LakeUnavailableError: Spark cannot be reached.
        """
        return [gateway for gateway in self._store().gateways() if self._is_in(namespace, gateway)]

    def read_cut_points(self) -> None:
        """Read the cut point of each gateway: the arrival up to which the run flushes and makes a checkpoint.

        The flush step calls it before it flushes. A cut point never splits a push.

        Raises:
            StagingUnavailableError: the staging store, or one of its shards, cannot be reached.
        """
        self._cut_points = self._stored_cut_points()

    def drop_cut_point(self, gateway: str) -> None:
        """Exclude a gateway from this run's checkpoints, because it could not be flushed."""
        if self._cut_points is not None:
            self._cut_points.pop(gateway, None)
        self._flushed, self._flushed_by_shard = None, {}  # they have the cut point in place of the flushed arrival

    def checkpoint_obstacle(self, gateway: str, tables: Iterable[str]) -> str | None:
        """Return which faults keep a gateway from getting a checkpoint in this run; None for no fault.

        Args:
            gateway: the gateway's id.
            tables: names of the gateway's tables.
        """
        namespace = self._config.namespaces.own.get(gateway, "")
        reasons = [*self.faults.get(None, []), *self.faults.get(gateway, [])]
        for table in sorted(tables):
            unmerged = self.unmerged.get((namespace, table))
            if unmerged is not None and unmerged.delays(gateway):
                reasons.append(f"its table {table} was not merged ({unmerged.reason})")
        return "; ".join(reasons) or None

    def cut_points(self) -> Mapping[str, CutPoint]:
        """Return gateway → its cut point, as read before the run's flush.

        In a run without a flush it has only the gateways without unflushed deltas.

        Raises:
            StagingUnavailableError: the staging store, or one of its shards, cannot be reached.
        """
        if self._cut_points is None:
            cut_points = self._stored_cut_points()
            for backlog in self._store().backlog():
                if backlog.deltas:
                    cut_points.pop(backlog.gateway, None)
            self._cut_points = cut_points
        return self._cut_points

    def forget_positions(self) -> None:
        """Discard all positions, so that they are read again. An erasure calls it, because it adds later arrivals."""
        self._cut_points, self._flushed, self._flushed_by_shard = None, None, {}

    def valid_through_ms(self) -> int:
        """Return the server wall time up to which the history has all acknowledged deltas, in milliseconds since 1970.

        A gateway with a cut point was flushed up to it, so its deltas are there up to the time at which the cut points
        were read. Of a gateway without one, they are there up to its oldest unflushed delta. The result is the earliest
        of these times. Call it after the run's flush. Assets report it as their data's freshness.

        Raises:
            StagingUnavailableError: the staging store cannot be reached.
        """
        cut_points = self.cut_points()
        unflushed = (shard.oldest_ms for shard in self._store().backlog() if shard.gateway not in cut_points)
        return min([self._cut_points_read_ms, *(oldest_ms for oldest_ms in unflushed if oldest_ms is not None)])

    def flushed(self, *, reread: bool = False) -> dict[str, int]:
        """Return gateway → the arrival up to which its deltas are in the lake.

        Once the run has its cut points, it is the gateway's cut point, so that the run's tables and checkpoints agree.

        Args:
            reread: True to read the lake again, because the run has flushed deltas to it.

        Raises:
            LakeUnavailableError: Spark cannot be reached.
        """
        if reread or self._flushed is None:
            from lakehouse.history.flush import flushed_arrivals

            self._flushed = self._at_cut_points(flushed_arrivals(self._spark(), self._names))
            self._flushed_by_shard = {}
        return self._flushed

    def flushed_of(self, table: str, namespace: str = "") -> dict[str, int]:
        """Return `flushed` for one state table: gateway → the arrival up to which the table can be merged.

        It has the gateways of the namespace without faults in their history. If tables are sharded, the arrivals are
        those of the table's shard.

        Args:
            table: the state table's name.
            namespace: the state table's namespace; empty for the shared one.

        Raises:
            LakeUnavailableError: Spark cannot be reached.
        """
        flushed = self._flushed_in_shard_of(table)
        return {
            gateway: arrival
            for gateway, arrival in flushed.items()
            if self._is_in(namespace, gateway) and not self.gateways_with_faulty_history & {gateway, None}
        }

    def _stored_cut_points(self) -> dict[str, CutPoint]:
        """Return the cut point of each gateway in the staging store, and keep the time at which they were read."""
        store = self._store()
        self._cut_points_read_ms = self._now_ms()
        return {gateway: store.cut_point(gateway) for gateway in store.gateways()}

    def _flushed_in_shard_of(self, table: str) -> dict[str, int]:
        """Return `flushed` by the shard of a table; for all shards if tables are not sharded."""
        shards = shard_map(self._config.shard_config)
        if shards is None:
            return self.flushed()
        shard = shards.of(table)
        if shard not in self._flushed_by_shard:
            from lakehouse.history.flush import flushed_arrivals

            # before tables were sharded, all deltas were in the main shard; the default shard continues it
            stored_as = (shard, MAIN_SHARD) if shard == shards.default else (shard,)
            arrivals = flushed_arrivals(self._spark(), self._names, stored_as)
            self._flushed_by_shard[shard] = self._at_cut_points(arrivals)
        return self._flushed_by_shard[shard]

    def _at_cut_points(self, arrivals: dict[str, int]) -> dict[str, int]:
        """Replace the arrival of each gateway that has a cut point by the cut point."""
        cut_points = self._cut_points or {}
        return {
            gateway: cut_points[gateway].arrival if gateway in cut_points else arrival
            for gateway, arrival in arrivals.items()
        }

    def _is_in(self, namespace: str, gateway: str) -> bool:
        """Return whether a gateway's tables are in a namespace."""
        return self._config.namespaces.own.get(gateway, "") == namespace and gateway not in self._misplaced

    @cached_property
    def _misplaced(self) -> dict[str, str]:
        """Gateway → the namespace of its rows, for gateways with another configured namespace."""
        from lakehouse.gateways_table import assign_namespaces

        def has_checkpoint(gateway: str) -> bool:
            return self._store().newest_checkpoint(gateway) is not None

        return assign_namespaces(self._spark(), has_checkpoint, self._config.namespaces, self._names)
