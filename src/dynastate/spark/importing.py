"""Import of a query from Spark's own state stores into DynamoDB: its state, and a checkpoint to restart it from.

Spark reads and writes state and checkpoints (jvm-bridge, CheckpointImport); this module has the checks and the order of
the steps (docs/decisions/0011).
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

from dynastate import errors
from dynastate.dynamodb.boto_tables import BotoTables
from dynastate.dynamodb.meter import Meter
from dynastate.dynamodb.tables import get_apart
from dynastate.engine.catalog import find_stores
from dynastate.errors import ConfigurationError, DynastateError
from dynastate.format.keys import location_of, meta_key
from dynastate.format.meta import StoreMeta, parse_meta
from dynastate.operations.drop import drop_stores
from dynastate.progress import ProgressCallback, no_progress
from dynastate.settings import PREFIX, Settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SPARK: Final = "4.3"
#: Marks the new checkpoint's folder while an import is under way there, or after it was cut off.
MARKER: Final = "dynastate-import"
_PROVIDERS: Final = "org.apache.spark.sql.execution.streaming.state."
#: Stores that can be imported from.
KNOWN: Final = {
    f"{_PROVIDERS}HDFSBackedStateStoreProvider": "HDFS",
    f"{_PROVIDERS}RocksDBStateStoreProvider": "RocksDB",
}
OURS: Final = "io.dynastate.spark.DynamoDBStateStoreProvider"
POLL_S: Final = 0.2
#: The group that jobs of a thread belong to.
_GROUP: Final = "spark.jobGroup.id"


@dataclass(frozen=True)
class Imported:
    """A completed import: the query resumes after `batch`, with `checkpoint` and these confs.

    `rows` counts values of state, `bytes` those of the values and their keys.
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
    spark: SparkSession, old: str, new: str, namespace: str | None = None, progress: ProgressCallback = no_progress
) -> Imported:
    """Import the state of a query that has stopped, as it was after its last committed batch.

    `old` and `new` are folders of checkpoints, as Spark names them; `old` is only read. `dynastate.configure` makes the
    session, with the jar and the settings of the tables. A batch that was begun and not committed is imported as such.

    1. Read both checkpoints, and refuse what cannot be imported before anything is written. 2. Mark the new checkpoint
    as being made, and delete what an import that was cut off left. 3. Write the state of every store, and read it back,
    in one task each. (Crash: stores without a checkpoint; step 2 of the next import deletes them.) 4. Check that the
    query has not resumed, and that no other import has begun. 5. Write the checkpoint, its commit log last. (Crash: the
    next import writes it again.) 6. Delete the mark.

    Raises:
        ConfigurationError: it cannot be imported; the message says why. The old checkpoint is unchanged.
        UnavailableError: DynamoDB was unreachable, or throttled, until the deadline; import again.
    """
    if not old or not new:
        raise ConfigurationError("give the folders of both checkpoints", old=repr(old), new=repr(new))
    started = time.monotonic()
    with _errors_of_spark():
        jvm = _Jvm(spark)
        source, target = jvm.qualified(old), jvm.qualified(new)
        plan = _plan(spark, jvm, source, target)  # 1
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
        with _reporting(spark, len(stores), progress):
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
        # The query runs with the cluster's interpreter.
        confs={name: value for name, value in conf.items() if name != f"{PREFIX}python"},
        **{name: sum(each[name] for each in made) for name in ("rows", "bytes", "bytes_written", "write_units")},
    )


class _Jvm:
    """Spark's side of an import, and operations on folders."""

    def __init__(self, spark: SparkSession) -> None:
        if not spark.version.startswith(f"{SPARK}."):
            raise ConfigurationError(
                f"import needs Spark {SPARK}; let the query run a batch on it first, if it has not", found=spark.version
            )
        jvm: Any = spark._jvm  # noqa: SLF001  # py4j's, as pyspark's own modules use it
        self.imports: Any = jvm.org.apache.spark.sql.dynastate.CheckpointImport
        if type(self.imports).__name__ == "JavaPackage":  # what py4j gives for a missing class
            raise ConfigurationError(
                "this session runs without dynastate's jar; make it with dynastate.configure, before any other"
            )
        self.session: Any = spark._jsparkSession  # noqa: SLF001
        self._path: Any = jvm.org.apache.hadoop.fs.Path
        self._hadoop: Any = self.session.sessionState().newHadoopConf()

    def qualified(self, folder: str) -> str:
        return str(self.imports.qualified(self.session, folder))

    def names(self, root: str, *below: str) -> list[str]:
        """Names in a folder; empty, if there is none."""
        path, files = self._at(root, *below)
        return [each.getPath().getName() for each in files.listStatus(path)] if files.exists(path) else []

    def write(self, root: str, name: str, text: str) -> None:
        path, files = self._at(root, name)
        with closing(files.create(path, True)) as out:
            out.write(text.encode())

    def read(self, root: str, name: str) -> str:
        path, files = self._at(root, name)
        with closing(files.open(path)) as stream:
            return bytes(stream.readAllBytes()).decode()

    def delete(self, root: str, name: str) -> None:
        path, files = self._at(root, name)
        files.delete(path, True)

    def _at(self, root: str, *below: str) -> tuple[Any, Any]:
        path = self._path("/".join((root, *below)))
        return path, path.getFileSystem(self._hadoop)


def _plan(spark: SparkSession, jvm: _Jvm, source: str, target: str) -> dict[str, Any]:
    """Describe what to import. Everything is checked but the namespace."""
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
    _check_target(jvm, source, target)
    return plan


def _check_target(jvm: _Jvm, source: str, target: str) -> None:
    if source != target and (f"{source}/".startswith(f"{target}/") or f"{target}/".startswith(f"{source}/")):
        raise ConfigurationError("one of the two checkpoints lies in the other", checkpoint=target)
    existing = jvm.names(target)
    # With a mark and one committed batch the import was cut off before step 6. With two the query has resumed.
    committed = [name for name in jvm.names(target, "commits") if name.isdigit()]
    if existing and (MARKER not in existing or len(committed) > 1):
        raise ConfigurationError("the folder of the new checkpoint is not empty", checkpoint=target)


_NOTHING: Final = "no batch of this checkpoint was committed: there is no state to import yet"


def _settings(spark: SparkSession, namespace: str | None) -> dict[str, str]:
    """The session's settings of dynastate, by their full names, with the given namespace."""
    found = {name: value for name, value in dict(spark.conf.getAll).items() if name.startswith(PREFIX)}
    return found | ({f"{PREFIX}namespace": namespace} if namespace else {})


def _start(jvm: _Jvm, tables: BotoTables, target: str, namespace: str, stores: list[str]) -> str:
    """Mark the new checkpoint, and delete what an import that was cut off left there and in the tables; the mark.

    A namespace in use is refused.
    """
    is_again = MARKER in jvm.names(target)
    # The mark is empty if the import was cut off while it wrote it.
    before = jvm.read(target, MARKER).partition("\n")[0] if is_again else ""
    if before not in ("", namespace):
        raise ConfigurationError(
            "an import into another namespace was cut off here; import into that, or 'dynastate drop' it and delete "
            "the folder",
            checkpoint=target,
            namespace=before,
        )
    left = _existing(tables, namespace, stores)
    location = location_of(f"{target}/state")
    # A store has one run of its import, and more once the query has resumed, in the time between the last steps.
    is_own = (each.location == location and len(each.epochs) == 1 for each in left.values())
    if left and not (is_again and all(is_own)):
        raise ConfigurationError(
            "the namespace has state already; take another one, or 'dynastate drop' it",
            namespace=namespace,
            checkpoint=next(iter(left.values())).location,
        )
    for name in jvm.names(target):
        if name != MARKER:
            jvm.delete(target, name)
    mark = f"{namespace}\n{uuid4()}\n"
    jvm.write(target, MARKER, mark)
    drop_stores(tables, list(left), Meter())
    return mark


def _existing(tables: BotoTables, namespace: str, stores: list[str]) -> dict[str, StoreMeta]:
    """Stores of a namespace, and what their meta items say.

    Among them are those of `stores` that an import which was cut off made before partition 0, which a search misses.
    """
    keys = {meta_key(store): store for store in stores}
    found = {keys[key]: item for key, item in get_apart(tables, list(keys), Meter()).items()}
    found |= find_stores(tables, namespace, Meter())
    return {store: parse_meta(store, item) for store, item in found.items()}


@contextmanager
def _reporting(spark: SparkSession, total: int, progress: ProgressCallback) -> Iterator[None]:
    """Report how many tasks of this thread's jobs are done, while they run."""
    group, ended = f"dynastate-import-{uuid4()}", threading.Event()
    context, tracker = spark.sparkContext, spark.sparkContext.statusTracker()
    before = context.getLocalProperty(_GROUP)

    def poll() -> None:
        while not ended.wait(POLL_S):
            jobs = filter(None, map(tracker.getJobInfo, tracker.getJobIdsForGroup(group)))
            stages = filter(None, (tracker.getStageInfo(stage) for job in jobs for stage in job.stageIds))
            progress(sum(stage.numCompletedTasks for stage in stages), total)

    watcher = threading.Thread(target=poll, name="dynastate-import-progress", daemon=True)
    watcher.start()
    context.setLocalProperty(_GROUP, group)
    try:
        yield
    finally:
        context.setLocalProperty(_GROUP, before)  # type: ignore[arg-type]  # None removes it
        ended.set()
        watcher.join()


@contextmanager
def _errors_of_spark() -> Iterator[None]:
    """Convert the JVM's errors to dynastate's, by their root cause: Spark's own messages are about jobs and stages."""
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
