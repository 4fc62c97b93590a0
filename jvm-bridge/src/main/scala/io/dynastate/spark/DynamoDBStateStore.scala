package io.dynastate.spark

import java.util.concurrent.TimeUnit.NANOSECONDS

import scala.util.control.NonFatal

import io.dynastate.core.{Attempt, ChangeSink, Connection, Entry, EntryIterator, ErrorKind, DynastateException, OpenVersion, Version}
import org.slf4j.LoggerFactory

import org.apache.spark.TaskContext
import org.apache.spark.sql.catalyst.expressions.UnsafeRow
import org.apache.spark.sql.dynastate.SparkInternals
import org.apache.spark.sql.execution.streaming.state._
import org.apache.spark.sql.types.StructType

/** Reads of one open version, for read stores and write stores alike. Rows handed out are views of arrays that never change. */
private[spark] trait VersionReads {
  protected def provider: DynamoDBStateStoreProvider

  protected def view: OpenVersion

  def id: StateStoreId = provider.stateStoreId

  def get(key: UnsafeRow, colFamilyName: String): UnsafeRow = {
    val entry = find(key, colFamilyName)
    if (entry == null) null
    else {
      val value = valueRow(entry, new UnsafeRow(provider.valueColumns))
      provider.validateFormat(key, value)
      value
    }
  }

  def keyExists(key: UnsafeRow, colFamilyName: String): Boolean = find(key, colFamilyName) != null

  def multiGet(keys: Array[UnsafeRow], colFamilyName: String): Iterator[UnsafeRow] = keys.iterator.map(get(_, colFamilyName))

  /** All pairs as of now. The pair and its rows are reused from one `next` to the other. */
  def iterator(colFamilyName: String): StateStoreIterator[UnsafeRowPair] = {
    val entries = view.entries(family(colFamilyName))
    new StateStoreIterator(new PairIterator(entries), () => entries.close())
  }

  def allColumnFamilyNames: Set[String] = Set(StateStore.DEFAULT_COL_FAMILY_NAME)

  def prefixScan(prefixKey: UnsafeRow, colFamilyName: String): StateStoreIterator[UnsafeRowPair] =
    throw new IllegalArgumentException("requirement failed: Prefix scan requires setting prefix key!")

  def valuesIterator(key: UnsafeRow, colFamilyName: String): Iterator[UnsafeRow] = throw multipleValues("valuesIterator")

  def iteratorWithMultiValues(colFamilyName: String): StateStoreIterator[UnsafeRowPair] = throw multipleValues("iteratorWithMultiValues")

  def prefixScanWithMultiValues(prefixKey: UnsafeRow, colFamilyName: String): StateStoreIterator[UnsafeRowPair] =
    throw multipleValues("prefixScanWithMultiValues")

  protected def multipleValues(operation: String): Throwable =
    new IllegalStateException(s"$operation requires a column family with multiple values per key")

  /** The default family has id 0; others come with column families. */
  protected def family(colFamilyName: String): Int =
    if (colFamilyName == StateStore.DEFAULT_COL_FAMILY_NAME) 0
    else throw StateStoreErrors.unsupportedOperationOnMissingColumnFamily("access", colFamilyName)

  private def find(key: UnsafeRow, colFamilyName: String): Array[Byte] = {
    if (key == null) throw new IllegalStateException("Key cannot be null")
    view.get(family(colFamilyName), key.getBaseObject, key.getBaseOffset, key.getSizeInBytes)
  }

  private def valueRow(entry: Array[Byte], row: UnsafeRow): UnsafeRow = {
    row.pointTo(entry, Entry.valueOffset(entry), Entry.valueLength(entry))
    row
  }

  private final class PairIterator(entries: EntryIterator) extends Iterator[UnsafeRowPair] {
    private[this] val key = new UnsafeRow(provider.keyColumns)
    private[this] val value = new UnsafeRow(provider.valueColumns)
    private[this] val pair = new UnsafeRowPair()
    private[this] var advanced = false
    private[this] var has = false

    override def hasNext: Boolean = {
      if (!advanced) {
        has = entries.advance()
        advanced = true
      }
      has
    }

    override def next(): UnsafeRowPair = {
      if (!hasNext) throw new NoSuchElementException("the state has no more rows")
      advanced = false
      val entry = entries.entry
      key.pointTo(entry, Entry.KeyOffset, Entry.keyLength(entry))
      valueRow(entry, value)
      provider.validateFormat(key, value)
      pair.withRows(key, value)
    }
  }
}

/** Takes no changes: a read store has no attempt. */
private[spark] object NoChanges extends ChangeSink {
  override def append(records: Int, hashMin: Int, hashMax: Int, run: Array[Byte], length: Int): Unit =
    throw new DynastateException(ErrorKind.Internal, "a read store was written to")
}

/** One version, to read. It holds no resource but memory: `release` and `abort` have nothing to free. */
final class DynamoDBReadStateStore private[spark] (
    protected val provider: DynamoDBStateStoreProvider,
    private[spark] val base: Version,
    private[spark] val load: Option[Load]) extends ReadStateStore with VersionReads {
  protected val view = new OpenVersion(base, NoChanges)

  override def version: Long = base.number

  override def id: StateStoreId = super[VersionReads].id

  override def get(key: UnsafeRow, colFamilyName: String): UnsafeRow = super[VersionReads].get(key, colFamilyName)

  override def keyExists(key: UnsafeRow, colFamilyName: String): Boolean = super[VersionReads].keyExists(key, colFamilyName)

  override def multiGet(keys: Array[UnsafeRow], colFamilyName: String): Iterator[UnsafeRow] = super[VersionReads].multiGet(keys, colFamilyName)

  override def abort(): Unit = ()

  override def release(): Unit = ()

  override def toString: String = s"DynamoDBReadStateStore[store=${provider.storeName}, version=$version]"
}

/**
 * One attempt: a version opened to make the next one.
 *
 * {{{
 * UPDATING --commit--> COMMITTED        reads then show the new version
 * UPDATING --abort---> ABORTED          reads then show the base
 * }}}
 *
 * Changes are legal while UPDATING only; reads, metrics and a second abort always. Used by one thread at a time, but not
 * always by the task's own (PySpark's state server), so `commit` and `abort` are synchronized.
 */
final class DynamoDBStateStore private[spark] (
    protected val provider: DynamoDBStateStoreProvider,
    base: Version,
    baseCheckpointId: Option[String],
    load: Option[Load]) extends StateStore with VersionReads with ChangeSink {
  import DynamoDBStateStore._

  protected val view = new OpenVersion(base, this)

  private[this] val attempt = Attempt.random()
  private[this] var connection: Connection = _
  @volatile private[this] var state: Phase = Updating
  private[this] var committed = Map.empty[String, Long]
  private[this] var commitMillis = 0L

  // Spark aborts write stores of StateStoreRDD only; joins and others rely on the store itself.
  Option(TaskContext.get()).foreach(_.addTaskCompletionListener[Unit](_ => abort()))

  override def version: Long = base.number

  override def put(key: UnsafeRow, value: UnsafeRow, colFamilyName: String): Unit = {
    mustBeUpdating("put")
    if (key == null) throw new IllegalStateException("Key cannot be null")
    require(value != null, "Cannot put a null value")
    view.put(family(colFamilyName), key.getBaseObject, key.getBaseOffset, key.getSizeInBytes,
      value.getBaseObject, value.getBaseOffset, value.getSizeInBytes)
  }

  override def remove(key: UnsafeRow, colFamilyName: String): Unit = {
    mustBeUpdating("remove")
    if (key == null) throw new IllegalStateException("Key cannot be null")
    view.remove(family(colFamilyName), key.getBaseObject, key.getBaseOffset, key.getSizeInBytes)
  }

  /**
   * Make the next version durable, then visible.
   *
   * 1. Send what has not been sent; the engine compresses and writes it in the background. (Failure: nothing is committed.)
   * 2. Meanwhile fold the changes into memory, as a version that nobody else can see yet. (Failure: it is garbage.)
   * 3. Commit: the engine waits until every part is durable and appends the version entry. (Failure: as the error says;
   *    the folded version is garbage, and the base is as readable as before.)
   * 4. Keep the new version, and show it.
   * 5. Report to Spark's coordinator, which checks that every partition committed.
   */
  override def commit(): Long = synchronized {
    mustBeUpdating("commit")
    val started = System.nanoTime()
    try {
      provider.writeMarker()
      view.flush() // 1
      val next = view.fold(attempt) // 2
      committed = commitAttempt(next.keys) // 3
      if (base.number > 0) provider.retain(base) // 4
      provider.retain(next)
      view.show(next)
      state = Committed
      provider.reportCommit(next.number) // 5
      commitMillis = NANOSECONDS.toMillis(System.nanoTime() - started)
      next.number
    } catch {
      case NonFatal(e) => throw SparkInternals.failedToCommit(toString, e)
    }
  }

  override def abort(): Unit = synchronized {
    if (state == Updating) {
      state = Aborted
      view.drop()
      if (connection != null) {
        connection.abort()
        connection.giveBack()
        connection = null
      }
      log.info(s"aborted store=${provider.storeName} version=${version + 1} attempt=$attempt")
    }
  }

  override def release(): Unit = abort()

  override def hasCommitted: Boolean = state == Committed

  override def metrics: StateStoreMetrics = {
    val shown = view.version
    StateStoreMetrics(shown.keys.sum, shown.tree.heapBytes + view.heapBytes, ProviderMetrics.of(load, committed, commitMillis))
  }

  override def getStateStoreCheckpointInfo(): StateStoreCheckpointInfo = {
    if (state != Committed) throw StateStoreErrors.stateStoreOperationOutOfOrder("checkpoint info is asked for before commit")
    val checkpointId = if (provider.config.enableStateStoreCheckpointIds) Some(attempt.toString) else None
    StateStoreCheckpointInfo(id.partitionId, version + 1, checkpointId, baseCheckpointId)
  }

  /** One chunk of changes, on its way to the engine; the first one starts the attempt there. */
  override def append(records: Int, hashMin: Int, hashMax: Int, run: Array[Byte], length: Int): Unit =
    leased().append(records, hashMin, hashMax, run, length, provider.deadlineSeconds)

  override def putList(key: UnsafeRow, values: Array[UnsafeRow], colFamilyName: String): Unit = throw multipleValues("putList")

  override def merge(key: UnsafeRow, value: UnsafeRow, colFamilyName: String): Unit = throw multipleValues("merge")

  override def mergeList(key: UnsafeRow, values: Array[UnsafeRow], colFamilyName: String): Unit = throw multipleValues("mergeList")

  override def removeColFamilyIfExists(colFamilyName: String): Boolean = throw columnFamilies("removeColFamilyIfExists")

  override def createColFamilyIfAbsent(
      colFamilyName: String, keySchema: StructType, valueSchema: StructType, keyStateEncoderSpec: KeyStateEncoderSpec,
      useMultipleValuesPerKey: Boolean, isInternal: Boolean): Unit = throw columnFamilies("createColFamilyIfAbsent")

  override def id: StateStoreId = super[VersionReads].id

  override def get(key: UnsafeRow, colFamilyName: String): UnsafeRow = super[VersionReads].get(key, colFamilyName)

  override def keyExists(key: UnsafeRow, colFamilyName: String): Boolean = super[VersionReads].keyExists(key, colFamilyName)

  override def multiGet(keys: Array[UnsafeRow], colFamilyName: String): Iterator[UnsafeRow] = super[VersionReads].multiGet(keys, colFamilyName)

  override def iterator(colFamilyName: String): StateStoreIterator[UnsafeRowPair] = super[VersionReads].iterator(colFamilyName)

  override def toString: String = s"DynamoDBStateStore[store=${provider.storeName}, version=$version, attempt=$attempt]"

  private def leased(): Connection = {
    if (connection == null) {
      connection = provider.lease()
      provider.begin(connection, base, attempt)
    }
    connection
  }

  /** Whatever the answer is, the attempt has ended on the engine's side. */
  private def commitAttempt(keys: Array[Long]): Map[String, Long] = {
    val last = leased()
    connection = null
    try last.commit(keys, provider.deadlineSeconds) finally last.giveBack()
  }

  private def mustBeUpdating(operation: String): Unit =
    if (state != Updating) throw StateStoreErrors.stateStoreOperationOutOfOrder(s"$operation after $state")

  private def columnFamilies(operation: String): Throwable = StateStoreErrors.unsupportedOperationException(operation, "DynamoDB state store")
}

private[spark] object DynamoDBStateStore {
  private val log = LoggerFactory.getLogger("io.dynastate.Store")

  sealed abstract class Phase(name: String) {
    override def toString: String = name
  }
  case object Updating extends Phase("updating")
  case object Committed extends Phase("commit")
  case object Aborted extends Phase("abort")
}
