"""The steps of every transfer: import, repartition and export.

Spark reads and writes state and checkpoints (jvm-bridge, StateTransfer); this module has the checks and the order of
the steps (docs/decisions/0025).
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

from dynastate.dynamodb.boto_tables import BotoTables, open_tables
from dynastate.engine.catalog import find_stores
from dynastate.engine.graphs import read_metas
from dynastate.errors import ConfigurationError
from dynastate.format.checkpoint import SCHEME, checkpoint_of_location
from dynastate.format.keys import location_of
from dynastate.format.meta import StoreMeta, parse_metas
from dynastate.operations.lifecycle.drop import drop_stores
from dynastate.progress import ProgressCallback
from dynastate.settings import PREFIX, Settings
from dynastate.spark.transfer.jvm import Jvm

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_PROVIDERS: Final = "org.apache.spark.sql.execution.streaming.state."
#: Spark's own stores, by the class of their provider.
SPARKS_OWN: Final = {
    f"{_PROVIDERS}HDFSBackedStateStoreProvider": "HDFS",
    f"{_PROVIDERS}RocksDBStateStoreProvider": "RocksDB",
}
OURS: Final = "io.dynastate.spark.DynamoDBStateStoreProvider"
POLL_S: Final = 0.2
#: The group that jobs of a thread belong to.
_GROUP: Final = "spark.jobGroup.id"


@dataclass(frozen=True)
class Moved:
    """A completed transfer: the query resumes after `batch`, with `checkpoint` and these confs.

    `rows` counts values of state, `bytes` their size with their keys. Without a namespace the state is in
    Spark's own store, whose bytes written and units are not counted.
    """

    checkpoint: str
    namespace: str
    batch: int
    stores: int
    rows: int
    bytes: int
    bytes_written: int
    write_units: int
    seconds: float
    confs: dict[str, str]


@dataclass(frozen=True)
class Target:
    """The new stores: their provider's class, number of partitions (0: as it is), namespace and settings of ours."""

    provider: str
    partitions: int = 0
    namespace: str = ""
    settings: Mapping[str, str] | None = None


@dataclass(frozen=True)
class Source:
    """The old stores: their settings, if they are in DynamoDB, and differences from the checkpoint.

    The differences are a version with its ids by operator/partition/name, or other rows of a store, by operator/name.
    """

    settings: Mapping[str, str] = field(default_factory=dict)
    version: int = 0
    ids: Mapping[str, str] = field(default_factory=dict)
    frames: Mapping[str, DataFrame] = field(default_factory=dict)


def marker_of(command: str) -> str:
    """The name of the file that marks a new checkpoint's folder while it is being made, or after that was cut off."""
    return f"dynastate-{command}"


def namespace_in(location: str) -> str:
    """The namespace that a checkpoint in DynamoDB has in its location. Empty if the checkpoint is elsewhere."""
    return checkpoint_of_location(location).namespace if location.startswith(SCHEME) else ""


def no_checkpoint(folder: str) -> ConfigurationError:
    """The error for a folder without a checkpoint."""
    return ConfigurationError("there is no checkpoint in this folder", checkpoint=folder)


def nothing_committed(checkpoint: str) -> ConfigurationError:
    """The error for a checkpoint without a committed batch."""
    return ConfigurationError(
        "no batch of this checkpoint was committed: there is no state to move yet", checkpoint=checkpoint
    )


def no_operator(operators: Sequence[int], operator: int) -> ConfigurationError:
    """The error for an operator that the query does not have."""
    return ConfigurationError(
        f"there is no such operator; the query has {', '.join(map(str, operators))}", operator=operator
    )


def own_namespace(namespace: str) -> ConfigurationError:
    """The error for a namespace of the old state."""
    return ConfigurationError("the new state needs a namespace of its own; give another one", namespace=namespace)


def target_namespace(new: str, namespace: str) -> str:
    """The given namespace of the new state, or that of a checkpoint in DynamoDB. Empty if there is neither."""
    stored_namespace = namespace_in(new)
    if namespace and stored_namespace not in ("", namespace):
        raise ConfigurationError(
            f"the new checkpoint is in the namespace {stored_namespace}, and so is its state: leave the namespace out",
            checkpoint=new,
            namespace=namespace,
        )
    return stored_namespace or namespace


def refuse_nested(old: str, new: str) -> None:
    """Refuse a checkpoint within the other one."""
    if old != new and (f"{old}/".startswith(f"{new}/") or f"{new}/".startswith(f"{old}/")):
        raise ConfigurationError("one of the two checkpoints lies in the other", checkpoint=new)


def refuse_used(marker: str, names: Sequence[str], committed: Sequence[int], new: str) -> None:
    """Refuse a new checkpoint whose files, by their `names`, are not from a transfer that was cut off.

    With a mark and one committed batch it was cut off before step 6. With two the query has resumed.
    """
    is_used = marker not in names and any(not name.startswith(f"{marker}-") for name in names)
    if is_used or len(committed) > 1:
        raise ConfigurationError("the folder of the new checkpoint is not empty", checkpoint=new)


def refuse_namespace(namespace: str, metas: Mapping[str, StoreMeta]) -> None:
    """Refuse a namespace with stores, by their meta items."""
    if metas:
        raise ConfigurationError(
            "the namespace has state already; take another one, or 'dynastate drop' it",
            namespace=namespace,
            checkpoint=next(iter(metas.values())).location,
        )


class Transfer:
    """One transfer of a stopped query's state, from `old` to `new`: folders of checkpoints, as Spark names them.

    `plan` describes the old checkpoint, which is only read. A batch that was begun and not committed is carried over
    as such.

    1. Read both checkpoints, and refuse what cannot be moved before anything is written. 2. Mark the new checkpoint as
    being made, and delete what a transfer that was cut off left. 3. Write the state of every store, and read it back.
    (Crash: stores without a checkpoint; step 2 of the next run deletes them.) 4. Check that the query has not resumed,
    and that no other transfer has begun. 5. Write the checkpoint, its commit log last. (Crash: the next run writes it
    again.) 6. Delete the mark, then check again that no other transfer has begun.

    Each run has a claim of its own beside the mark: it looks for the mark after its claim is written, and for the
    claims after the mark was deleted. So of two runs either the second finds no mark, and deletes nothing, or the first
    finds that its claim is not the only one, and fails.
    """

    def __init__(self, spark: SparkSession, command: str, old: str, new: str) -> None:
        if not old or not new:
            raise ConfigurationError("give the folders of both checkpoints", old=repr(old), new=repr(new))
        self.started = time.monotonic()
        self.new = new
        self.jvm = Jvm(spark, command)
        self.source, self.target = self.jvm.qualified(old), self.jvm.qualified(new)
        self._spark = spark
        self._marker = marker_of(command)
        self._claim = f"{self._marker}-{uuid4()}"
        self.plan = self._describe()
        self._check()

    def run(self, to: Target, source: Source, progress: ProgressCallback) -> Moved:
        """Steps 2 to 6. After a failure the old checkpoint is unchanged."""
        jvm, settings = self.jvm, dict(to.settings or {})
        self._start(to)  # 2
        frames = {path: frame._jdf for path, frame in source.frames.items()}  # noqa: SLF001
        with self._reporting(self._tasks(to, source), progress):
            results = jvm.transfer.move(
                jvm.session,
                self.source,
                self.target,
                to.provider,
                to.partitions,
                dict(source.settings),
                settings,
                source.version,
                dict(source.ids),
                frames,
            )  # 3
        plan = json.loads(jvm.transfer.describe(jvm.session, self.source))
        if (plan["batch"], plan["offsets"]) != (self.plan["batch"], self.plan["offsets"]):  # 4
            raise ConfigurationError(
                "the query went on while its state was moved; stop it, and run the command again", batch=plan["batch"]
            )
        self._must_be_alone()
        jvm.transfer.makeCheckpoint(
            jvm.session, self.source, self.target, to.provider, to.partitions, results, frames
        )  # 5
        jvm.delete(self.target, self._marker)  # 6
        self._must_be_alone()
        jvm.delete(self.target, self._claim)
        stores = json.loads(results)
        return Moved(
            checkpoint=self.new,
            namespace=to.namespace,
            batch=self.plan["batch"],
            stores=len(stores),
            seconds=round(time.monotonic() - self.started, 1),
            # The query runs with the cluster's interpreter.
            confs={name: value for name, value in settings.items() if name != f"{PREFIX}python"},
            **{name: sum(each[name] for each in stores) for name in ("rows", "bytes", "bytes_written", "write_units")},
        )

    def ours(self, namespace: str | None, partitions: int = 0, other: str | None = None) -> Target:
        """New stores of ours, with the session's settings, in another namespace than `other`.

        The default namespace is that of a checkpoint in DynamoDB, and else made of the checkpoint's path.
        """
        settings = self.settings(target_namespace(self.target, namespace or ""))
        owner = settings.get(f"{PREFIX}namespace") or str(self.jvm.transfer.namespaceOf(self.jvm.session, self.target))
        if owner == other:
            raise own_namespace(owner)
        return Target(OURS, partitions, owner, settings)

    def settings(self, namespace: str | None) -> dict[str, str]:
        """The session's settings of dynastate, by their full names, with the given namespace."""
        conf = {name: value for name, value in dict(self._spark.conf.getAll).items() if name.startswith(PREFIX)}
        return conf | ({f"{PREFIX}namespace": namespace} if namespace else {})

    def stores(self, to: Target) -> list[str]:
        """Names of the new stores."""
        return [
            f"{to.namespace}/{each['operator']}/{partition}/{each['name']}"
            for each in self.plan["stores"]
            for partition in range(to.partitions if to.partitions and not each["single"] else each["partitions"])
        ]

    def _tasks(self, to: Target, source: Source) -> int:
        """The number of tasks: one for each old store, and with a shuffle one more for each new one."""
        stores = [each for each in self.plan["stores"] if f"{each['operator']}/{each['name']}" not in source.frames]
        plans = (frame._jdf.queryExecution() for frame in source.frames.values())  # noqa: SLF001
        brought = sum(int(plan.toRdd().getNumPartitions()) for plan in plans)
        tasks: int = sum(each["partitions"] for each in stores) + brought
        return tasks + (len(self.stores(to)) if to.partitions or source.frames else 0)

    def _describe(self) -> dict[str, Any]:
        names = self.jvm.names(self.source)
        if "offsets" not in names:
            raise no_checkpoint(self.source)
        if "commits" not in names:
            raise nothing_committed(self.source)
        plan: dict[str, Any] = json.loads(self.jvm.transfer.describe(self.jvm.session, self.source))
        if plan["batch"] < 0:
            raise nothing_committed(self.source)
        return plan

    def _check(self) -> None:
        """Check everything that is the same for every transfer, except the namespace."""
        plan, source, target, jvm = self.plan, self.source, self.target, self.jvm
        if not plan["stores"]:
            raise ConfigurationError(
                "the checkpoint describes no state: the query has no stateful operator, or the folders _metadata of "
                "its state are gone",
                checkpoint=source,
            )
        if any(str(query.id) == plan["query"] for query in self._spark.streams.active):
            raise ConfigurationError("the query is running; stop it first", query=plan["query"])
        refuse_nested(source, target)
        committed = [int(name) for name in jvm.names(target, "commits") if name.isdigit()]
        refuse_used(self._marker, jvm.names(target), committed, target)

    def _must_be_alone(self) -> None:
        claims = [name for name in self.jvm.names(self.target) if name.startswith(f"{self._marker}-")]
        if claims != [self._claim]:
            raise ConfigurationError(
                "another command writes this checkpoint at the same time; let it end, or delete the folder, and run it "
                "again",
                checkpoint=self.target,
            )

    def _clear(self) -> None:
        """Delete everything in the new checkpoint except the mark and this run's claim."""
        for name in self.jvm.names(self.target):
            if name not in (self._marker, self._claim):
                self.jvm.delete(self.target, name)

    def _start(self, to: Target) -> None:
        """Mark the new checkpoint, and delete the leftovers of a transfer that was cut off, there and in the tables."""
        with tables_of(to.settings) if to.settings is not None else nullcontext() as tables:
            self._leftovers(to, tables)
            self.jvm.write(self.target, self._claim, "")
            try:
                leftovers = self._leftovers(to, tables)  # another transfer may have ended before the claim
            except BaseException:
                self.jvm.delete(self.target, self._claim)
                raise
            if self._marker in self.jvm.names(self.target):
                self._clear()
            self._must_be_alone()
            self.jvm.write(self.target, self._marker, f"{to.namespace}\n")
            if tables and leftovers:
                drop_stores(tables, leftovers)

    def _leftovers(self, to: Target, tables: BotoTables | None) -> list[str]:
        """The stores of a transfer that was cut off. Refuse a folder or a namespace in use."""
        jvm, target, namespace = self.jvm, self.target, to.namespace
        is_again = self._marker in (names := jvm.names(target))
        refuse_used(self._marker, names, [], target)
        # The mark is empty if it was cut off while it was written.
        marked_namespace = jvm.read(target, self._marker).partition("\n")[0] if is_again else ""
        if marked_namespace not in ("", namespace):
            raise ConfigurationError(
                "the same command for another namespace was cut off here; run it for that, or 'dynastate drop' it and "
                "delete the folder",
                checkpoint=target,
                namespace=marked_namespace,
            )
        metas = _existing(tables, namespace, self.stores(to)) if tables else {}
        location = location_of(f"{target}/state")
        # A store has one run of its transfer, and more once the query has resumed between the last two steps.
        is_own = (each.location == location and len(each.epochs) == 1 for each in metas.values())
        if not (is_again and all(is_own)):
            refuse_namespace(namespace, metas)
        return list(metas)

    @contextmanager
    def _reporting(self, total: int, progress: ProgressCallback) -> Iterator[None]:
        """Report how many tasks of this thread's jobs are done, while they run."""
        group, ended = f"{self._marker}-{uuid4()}", threading.Event()
        context, tracker = self._spark.sparkContext, self._spark.sparkContext.statusTracker()
        previous_group = context.getLocalProperty(_GROUP)

        def poll() -> None:
            while not ended.wait(POLL_S):
                jobs = filter(None, map(tracker.getJobInfo, tracker.getJobIdsForGroup(group)))
                stages = filter(None, (tracker.getStageInfo(stage) for job in jobs for stage in job.stageIds))
                progress(sum(stage.numCompletedTasks for stage in stages), total)

        watcher = threading.Thread(target=poll, name=f"{self._marker}-progress", daemon=True)
        watcher.start()
        context.setLocalProperty(_GROUP, group)
        try:
            yield
        finally:
            context.setLocalProperty(_GROUP, previous_group)  # type: ignore[arg-type]  # None removes it
            ended.set()
            watcher.join()


def tables_of(settings: Mapping[str, str]) -> BotoTables:
    """The tables of a session's settings."""
    return open_tables(Settings.from_spark({name.removeprefix(PREFIX): value for name, value in settings.items()}))


def _existing(tables: BotoTables, namespace: str, stores: Sequence[str]) -> dict[str, StoreMeta]:
    """Stores of a namespace, with their meta items.

    They include stores that a transfer made before it was cut off, before partition 0, which a search misses.
    """
    return read_metas(tables, stores) | parse_metas(find_stores(tables, namespace))
