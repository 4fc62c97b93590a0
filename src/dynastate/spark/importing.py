"""Bring a query from Spark's own state stores into DynamoDB: its state, and the checkpoint with which it goes on.

What reads and writes state and checkpoints runs in Spark (jvm-bridge, CheckpointImport); here is what is refused, and
in which order things are done (docs/decisions/0011).
"""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

from dynastate import errors, layout, upkeep
from dynastate.errors import ConfigurationError, DynastateError
from dynastate.progress import Progress, unheard
from dynastate.settings import PREFIX, Settings
from dynastate.stores import find_stores
from dynastate.tables import BotoTables, Meter, get_apart

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SPARK: Final = "4.3"
#: Says in the new checkpoint's folder that an import is under way there, or was cut off.
MARKER: Final = "dynastate-import"
_PROVIDERS: Final = "org.apache.spark.sql.execution.streaming.state."
#: Stores that can be imported from.
KNOWN: Final = {
    f"{_PROVIDERS}HDFSBackedStateStoreProvider": "HDFS",
    f"{_PROVIDERS}RocksDBStateStoreProvider": "RocksDB",
}
OURS: Final = "io.dynastate.spark.DynamoDBStateStoreProvider"
LOOK_EVERY_S: Final = 0.2
#: The group that jobs of a thread belong to.
_GROUP: Final = "spark.jobGroup.id"


@dataclass(frozen=True)
class Imported:
    """An import that is done: the query goes on after `batch`, with `checkpoint` and these confs.

    `rows` are values of state, `bytes` theirs and those of their keys.
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


def import_checkpoint(
    spark: SparkSession,
    old: str,
    new: str,
    namespace: str | None = None,
    progress: Progress = unheard,
) -> Imported:
    """Import the state of a query that has stopped, as it was after its last committed batch.

    `old` and `new` are folders of checkpoints, for Spark's eyes; `old` is only read. The session has our jar and the
    settings of the tables, as `dynastate.configure` makes one. A batch that was begun and not committed stays so.

    1. Look at what there is; refuse what cannot be imported, before anything is written. 2. Mark the new checkpoint as
    one that is being made, and take away what an import that was cut off left. 3. Write the state of every store, and
    read it back, a task each. (Crash: stores that no checkpoint knows; step 2 of the next import finds them.) 4. Make
    sure that the query has not gone on, and that no other import has begun. 5. Make the checkpoint, its commit log
    last. (Crash: the next import makes it anew.) 6. Take the mark away.

    Raises:
        ConfigurationError: it cannot be imported; the message says why. The old checkpoint is as it was.
        UnavailableError: DynamoDB was away, or throttled, until the deadline; import again.
    """
    started = time.monotonic()
    with _saying_why():
        jvm = _Jvm(spark)
        source, target = jvm.qualified(old), jvm.qualified(new)
        plan = _look(spark, jvm, source, target)  # 1
        conf = _settings(spark, namespace)
        owner = conf.get(f"{PREFIX}namespace") or str(jvm.imports.namespaceOf(target))
        settings = Settings.from_spark({name.removeprefix(PREFIX): value for name, value in conf.items()})
        stores = [
            f"{owner}/{each['operator']}/{at}/{each['name']}"
            for each in plan["stores"]
            for at in range(each["partitions"])
        ]
        with closing(BotoTables(settings)) as tables:
            mark = _start(jvm, tables, target, owner, stores)  # 2
        with _watching(spark, len(stores), progress):
            made = json.loads(jvm.imports.importState(jvm.session, source, target, plan["batch"], conf))  # 3
        now = json.loads(jvm.imports.describe(jvm.session, source))
        if (now["batch"], now["offsets"]) != (plan["batch"], plan["offsets"]):  # 4
            raise ConfigurationError(
                "the query went on while its state was imported; stop it, and import again", batch=now["batch"]
            )
        if jvm.read(target, MARKER) != mark:
            raise ConfigurationError(
                "another import writes this checkpoint at the same time; let it end, or delete the folder, and import "
                "again",
                checkpoint=target,
            )
        ids = {each["old_id"]: each["id"] for each in made if each["old_id"] is not None}
        jvm.imports.makeCheckpoint(jvm.session, source, target, plan["batch"], ids)  # 5
        jvm.delete(target, MARKER)  # 6
    return Imported(
        checkpoint=new,
        namespace=owner,
        batch=plan["batch"],
        stores=len(made),
        seconds=round(time.monotonic() - started, 1),
        # The interpreter is the cluster's, where the query runs.
        confs={name: value for name, value in conf.items() if name != f"{PREFIX}python"},
        **{name: sum(each[name] for each in made) for name in ("rows", "bytes", "bytes_written", "write_units")},
    )


class _Jvm:
    """Spark's side of an import, and the few things that are done to folders."""

    def __init__(self, spark: SparkSession) -> None:
        if not spark.version.startswith(f"{SPARK}."):
            raise ConfigurationError(
                f"import needs Spark {SPARK}; let the query run a batch on it first, if it has not", found=spark.version
            )
        jvm: Any = spark._jvm  # noqa: SLF001  # py4j's, as pyspark's own modules use it
        self.imports: Any = jvm.org.apache.spark.sql.dynastate.CheckpointImport
        if type(self.imports).__name__ == "JavaPackage":  # what py4j makes of a class that is not there
            raise ConfigurationError(
                "this session runs without dynastate's jar; make it with dynastate.configure, before any other"
            )
        self.session: Any = spark._jsparkSession  # noqa: SLF001
        self._path: Any = jvm.org.apache.hadoop.fs.Path
        self._hadoop: Any = self.session.sessionState().newHadoopConf()

    def qualified(self, folder: str) -> str:
        return str(self.imports.qualified(self.session, folder))

    def names(self, root: str, *below: str) -> list[str]:
        """What lies in a folder; nothing, if there is none."""
        path, files = self._at(root, *below)
        return [each.getPath().getName() for each in files.listStatus(path)] if files.exists(path) else []

    def write(self, root: str, name: str, text: str) -> None:
        path, files = self._at(root, name)
        out = files.create(path, True)
        try:
            out.write(text.encode())
        finally:
            out.close()

    def read(self, root: str, name: str) -> str:
        path, files = self._at(root, name)
        stream = files.open(path)
        try:
            return bytes(stream.readAllBytes()).decode()
        finally:
            stream.close()

    def delete(self, root: str, name: str) -> None:
        path, files = self._at(root, name)
        files.delete(path, True)

    def _at(self, root: str, *below: str) -> tuple[Any, Any]:
        path = self._path("/".join((root, *below)))
        return path, path.getFileSystem(self._hadoop)


def _look(spark: SparkSession, jvm: _Jvm, source: str, target: str) -> dict[str, Any]:
    """What there is to import. Raises what is in the way of it, but for the namespace."""
    there = jvm.names(source)
    if "offsets" not in there:
        raise ConfigurationError("there is no checkpoint in this folder", checkpoint=source)
    if "commits" not in there:
        raise ConfigurationError(_NOTHING, checkpoint=source)
    plan: dict[str, Any] = json.loads(jvm.imports.describe(jvm.session, source))
    if plan["batch"] < 0:
        raise ConfigurationError(_NOTHING, checkpoint=source)
    if plan["provider"] == OURS:
        raise ConfigurationError("the query keeps its state in DynamoDB already", checkpoint=source)
    if plan["provider"] not in KNOWN:
        raise ConfigurationError(
            f"state can be imported from Spark's own stores, {' and '.join(KNOWN.values())}", provider=plan["provider"]
        )
    if plan["encoding"] != "unsaferow":
        raise ConfigurationError(
            "state that is encoded as Avro cannot be imported: dynastate keeps rows as Spark's operators have them",
            checkpoint=source,
        )
    if not plan["stores"]:
        raise ConfigurationError(
            "the checkpoint describes no state: the query has no stateful operator, or it last ran on a Spark before "
            f"4.0, and has to run a batch on Spark {SPARK} first",
            checkpoint=source,
        )
    if any(str(query.id) == plan["query"] for query in spark.streams.active):
        raise ConfigurationError("the query is running; stop it first", query=plan["query"])
    _look_at_target(jvm, source, target)
    return plan


def _look_at_target(jvm: _Jvm, source: str, target: str) -> None:
    if source != target and (f"{source}/".startswith(f"{target}/") or f"{target}/".startswith(f"{source}/")):
        raise ConfigurationError("one of the two checkpoints lies in the other", checkpoint=target)
    existing = jvm.names(target)
    # A mark beside a batch that is committed: it was cut off at its very end. With another one the query has begun.
    committed = [name for name in jvm.names(target, "commits") if name.isdigit()]
    if existing and (MARKER not in existing or len(committed) > 1):
        raise ConfigurationError("the folder of the new checkpoint is not empty", checkpoint=target)


_NOTHING: Final = "no batch of this checkpoint was committed: there is no state to import yet"


def _settings(spark: SparkSession, namespace: str | None) -> dict[str, str]:
    """The session's settings of ours, by their whole names, with the namespace asked for."""
    found = {name: value for name, value in dict(spark.conf.getAll).items() if name.startswith(PREFIX)}
    return found | ({f"{PREFIX}namespace": namespace} if namespace else {})


def _start(jvm: _Jvm, tables: BotoTables, target: str, namespace: str, stores: list[str]) -> str:
    """Mark the new checkpoint, and take away what an import that was cut off left in it and in the tables; the mark.

    Raises:
        ConfigurationError: the namespace is in use.
    """
    is_again = MARKER in jvm.names(target)
    # Nothing stands in it yet where it was cut off at once.
    before = jvm.read(target, MARKER).partition("\n")[0] if is_again else ""
    if before not in ("", namespace):
        raise ConfigurationError(
            "an import into another namespace was cut off here; import into that, or 'dynastate drop' it and delete "
            "the folder",
            checkpoint=target,
            namespace=before,
        )
    left = _there(tables, namespace, stores)
    if left and not (is_again and all(owner == f"{target}/state" for owner in left.values())):
        raise ConfigurationError(
            "the namespace has state already; take another one, or 'dynastate drop' it",
            namespace=namespace,
            checkpoint=next(iter(left.values())),
        )
    for name in jvm.names(target):
        if name != MARKER:
            jvm.delete(target, name)
    mark = f"{namespace}\n{uuid4()}\n"
    jvm.write(target, MARKER, mark)
    upkeep.drop_all(tables, list(left), Meter())
    return mark


def _there(tables: BotoTables, namespace: str, stores: list[str]) -> dict[str, str]:
    """Stores of a namespace with the checkpoints that they say they belong to.

    Also those of `stores` that an import which was cut off made before the first ones: nobody finds them otherwise.
    """
    known = dict.fromkeys([*(store for _, store in find_stores(tables, namespace, Meter())), *stores])
    keys = {layout.meta_key(store): store for store in known}
    return {keys[key]: str(item.get("checkpoint")) for key, item in get_apart(tables, list(keys), Meter()).items()}


@contextmanager
def _watching(spark: SparkSession, total: int, progress: Progress) -> Iterator[None]:
    """Tell how many tasks of this thread's jobs are done, while they run."""
    group, over = f"dynastate-import-{uuid4()}", threading.Event()
    context, tracker = spark.sparkContext, spark.sparkContext.statusTracker()
    before = context.getLocalProperty(_GROUP)

    def look() -> None:
        while not over.wait(LOOK_EVERY_S):
            jobs = filter(None, map(tracker.getJobInfo, tracker.getJobIdsForGroup(group)))
            stages = filter(None, (tracker.getStageInfo(stage) for job in jobs for stage in job.stageIds))
            progress(sum(stage.numCompletedTasks for stage in stages), total)

    watcher = threading.Thread(target=look, name="dynastate-import-progress", daemon=True)
    watcher.start()
    context.setLocalProperty(_GROUP, group)
    try:
        yield
    finally:
        context.setLocalProperty(_GROUP, before)  # type: ignore[arg-type]  # None takes it away
        over.set()
        watcher.join()


@contextmanager
def _saying_why() -> Iterator[None]:
    """Let errors of the JVM be ours, with what lies at their bottom: Spark's own speak of jobs and stages."""
    try:
        yield
    except DynastateError:
        raise
    except Exception as failed:
        thrown = getattr(failed, "java_exception", None) or getattr(failed, "_origin", None)
        if thrown is None:
            raise
        raise _error_of(thrown) from failed


def _error_of(thrown: Any) -> DynastateError:
    causes = []
    while thrown is not None:
        causes.append(thrown)
        thrown = thrown.getCause()
    for each in reversed(causes):
        if each.getClass().getSimpleName() == "DynastateException":
            return errors.BY_KIND[each.kind()](re.sub(r"^dynastate \([^)]*\): ", "", str(each.getMessage())))
    root = causes[-1]
    said = " ".join(str(root.getMessage()).split()) or root.getClass().getName()
    return ConfigurationError(f"the old checkpoint cannot be read, or the new one not be written: {said}")
