"""What the steps of one run share: the settings, the staging store, one Spark session and the lake's names."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from functools import cached_property
from typing import TYPE_CHECKING, Self

import msgspec

from lakesync.clock import WallClock
from lakesync.exceptions import ConfigurationError
from lakesync.hlc import wall_of
from lakesync.staging.head import MAIN_SHARD
from lakesync.staging.shards import shard_map
from resources.lake.tables import Contract, LakeNames
from resources.staging import pipeline_store
from resources.uris import checkpoints_uri, table_uri

if TYPE_CHECKING:
    from types import TracebackType

    from pyspark.sql import SparkSession

    from lakesync.config import Config
    from lakesync.staging.records import Hold
    from lakesync.staging.store import PipelineStore


class Pipeline:
    """Opened with nothing; each part opens when it is first asked for and closes at the end of `with`.

    A session costs seconds, so the steps of a run, which follow one another in one process, share one.
    """

    def __init__(self, config: Config) -> None:
        self.config = config
        self._stack = ExitStack()
        self._spark: SparkSession | None = None
        self._flushed: dict[str, int] | None = None
        self._flushed_of: dict[str, dict[str, int]] = {}
        self._holds: dict[str, Hold] = {}
        self.set_aside: list[tuple[str, str | None]] = []
        """What went wrong with a table or a gateway alone, and which gateway was not flushed: the run goes on without
        it, and fails at its end."""
        self._clock = WallClock(config.clock_offset_file)
        self.names = LakeNames(config.lake.catalog, config.lake.system_namespace, config.lake.namespace)
        """With the namespace that gateways share."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.renew_spark()
        self._stack.close()

    @cached_property
    def store(self) -> PipelineStore:
        """The staging store.

        Raises:
            StagingUnavailableError: it cannot be reached.
        """
        return self._stack.enter_context(pipeline_store(self.config))

    @property
    def spark(self) -> SparkSession:
        """The run's session.

        Raises:
            LakeUnavailableError: no Spark answers.
        """
        if self._spark is None:
            from resources.spark import connect

            self._spark = connect(self.config)
        return self._spark

    def contracts(self) -> dict[str, Contract]:
        """Of the tables that have one other than `evolve`."""
        return {name: table.contract for name, table in self.config.tables.items() if table.contract != "evolve"}

    def names_in(self, namespace: str) -> LakeNames:
        """The lake's names with the state tables of a namespace; `""` is the one that gateways share."""
        return msgspec.structs.replace(self.names, tables=namespace, shared=False) if namespace else self.names

    def names_of(self, gateway: str) -> LakeNames:
        """The lake's names with the state tables of a gateway.

        Raises:
            ConfigurationError: its rows are in another namespace than is configured now.
            LakeUnavailableError: as `spark`.
        """
        moved = self._moved.get(gateway)
        if moved is not None:
            raise ConfigurationError(
                f"the rows of gateway {gateway!r} are in the lake's namespace {moved!r}, and it is configured for "
                f"{self.config.namespaces.of(gateway)!r}: a gateway's namespace stays what it was when it began, so "
                f"put gateways.{gateway}.namespace back, or begin another gateway"
            )
        return self.names_in(self.config.namespaces.own.get(gateway, ""))

    @cached_property
    def _moved(self) -> dict[str, str]:
        from resources.lake.homes import moved_gateways

        def has_begun(gateway: str) -> bool:
            return self.store.newest_cut(gateway) is not None

        return moved_gateways(self.spark, has_begun, self.config.namespaces, self.names)

    def gateways_in(self, namespace: str) -> list[str]:
        """The gateways whose rows are in a namespace, `""` the shared one, but for those that are configured for it
        and began in another.

        Raises:
            StagingUnavailableError: as `hold`.
            LakeUnavailableError: as `spark`.
        """
        return [each for each in self.store.gateways() if self._is_in(namespace, each)]

    def _is_in(self, namespace: str, gateway: str) -> bool:
        return self.config.namespaces.own.get(gateway, "") == namespace and gateway not in self._moved

    @property
    def checkpoints_uri(self) -> str:
        """The folder of checkpoint frames."""
        return checkpoints_uri(self.config)

    def uri(self, namespace: str, table: str) -> str:
        """Where a table's files are."""
        return table_uri(self.config, namespace, table)

    def hold(self) -> None:
        """Note where each gateway is; to be called before a flush, after which that is where it can be cut.

        Raises:
            StagingUnavailableError: the staging store, or one of its shards, cannot be reached.
        """
        self._holds = {gateway: self.store.hold(gateway) for gateway in self.store.gateways()}

    def look_again(self) -> None:
        """Forget where gateways and the lake were: an erasure takes arrivals above what was noted before it."""
        self._holds, self._flushed = {}, None

    def let_go(self, gateway: str) -> None:
        """A gateway could not be flushed: in this run it is where the lake has it, and is not cut."""
        self._holds.pop(gateway, None)

    def holds(self) -> dict[str, Hold]:
        """Where each gateway can be cut: what was noted before this run's flush, else those of which nothing waits.

        Raises:
            StagingUnavailableError: as `hold`.
        """
        if not self._holds:
            self.hold()
            for waiting in self.store.backlog():
                if waiting.deltas:
                    self._holds.pop(waiting.gateway, None)
        return self._holds

    def now_ms(self) -> int:
        """Server wall time, by the clock that the gateway has."""
        return self._clock.now_ms()

    def settled_ms(self) -> int:
        """Server wall time up to which everything acknowledged is in the lake, once this run has flushed.

        Raises:
            StagingUnavailableError: as `hold`.
        """
        holds = self.holds()
        moments = [wall_of(hold.arrival) for hold in holds.values()]
        if holds.keys() != set(self.store.gateways()):
            waiting = [each for each in self.store.backlog() if each.gateway not in holds]
            moments += [each.oldest_ms for each in waiting if each.oldest_ms is not None]
        return min(moments, default=self.now_ms())

    def flushed(self, *, anew: bool = False) -> dict[str, int]:
        """Up to which arrival each gateway's deltas are in the lake: read once a run, so that all tables agree.

        After this run's flush that is where it was held, so that the run's tables and its cut are of one arrival.

        Raises:
            LakeUnavailableError: as `spark`.
        """
        if anew or self._flushed is None:
            from resources.lake.history.flush import flushed_arrivals

            self._flushed = self._held(flushed_arrivals(self.spark, self.names))
            self._flushed_of = {}
        return self._flushed

    def flushed_of(self, table: str, namespace: str = "") -> dict[str, int]:
        """`flushed` as far as a state table is concerned: of the gateways that have a namespace.

        Raises:
            LakeUnavailableError: as `spark`.
        """
        flushed = self._flushed_with(table)
        return {gateway: arrival for gateway, arrival in flushed.items() if self._is_in(namespace, gateway)}

    def _flushed_with(self, table: str) -> dict[str, int]:
        """Where tables are sharded, by what the table's own shard has flushed."""
        shards = shard_map(self.config.shard_config)
        if shards is None:
            return self.flushed()
        shard = shards.of(table)
        if shard not in self._flushed_of:
            from resources.lake.history.flush import flushed_arrivals

            streams = (shard, MAIN_SHARD) if shard == shards.default else (shard,)
            self._flushed_of[shard] = self._held(flushed_arrivals(self.spark, self.names, streams))
        return self._flushed_of[shard]

    def _held(self, arrivals: dict[str, int]) -> dict[str, int]:
        return {
            gateway: self._holds[gateway].arrival if gateway in self._holds else arrival
            for gateway, arrival in arrivals.items()
        }

    def renew_spark(self) -> None:
        """Let go of the session, which may be lost: whoever asks next gets a new one."""
        spark, self._spark = self._spark, None
        if spark is not None:
            spark.stop()


OpenPipeline = Callable[[], AbstractContextManager[Pipeline]]
"""How a sensor opens one: as a resource it would cost each tick a Dagster instance, 0.13 s of CPU."""
