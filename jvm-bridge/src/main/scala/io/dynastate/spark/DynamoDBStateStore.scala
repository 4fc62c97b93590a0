package io.dynastate.spark

import java.util.concurrent.TimeUnit.NANOSECONDS

import scala.collection.mutable
import scala.util.control.NonFatal

import io.dynastate.core.{Attempt, ChangeSink, Connection, DynastateException, Entry, ErrorKind, OpenVersion, Row, RowIterator, ValueList, Version}
import org.slf4j.LoggerFactory

import org.apache.spark.TaskContext
import org.apache.spark.sql.catalyst.expressions.UnsafeRow
import org.apache.spark.sql.dynastate.SparkInternals
import org.apache.spark.sql.execution.streaming.state._
import org.apache.spark.sql.types.StructType
import org.apache.spark.unsafe.Platform

/** Reads of one open version, for read stores and write stores alike. Rows handed out are views of arrays that never change. */
private[spark] trait VersionReads extends ReadStateStore43 {
  protected def provider: DynamoDBStateStoreProvider

  protected def view: OpenVersion

  /** Whether families that this version does not have are errors. */
  protected def isWriter: Boolean

  /** The column families as this store sees them. */
  protected var schema: StateSchema = _

  private[this] val open = mutable.HashMap.empty[String, OpenFamily]
  /** Nearly every call is for the same family as the one before. */
  private[this] var lastName: String = _
  private[this] var last: OpenFamily = _

  override def id: StateStoreId = provider.stateStoreId

  /** The first value, where there are several. */
  override def get(key: UnsafeRow, colFamilyName: String): UnsafeRow = {
    val family = familyOf("get", colFamilyName)
    val row = find(family, key)
    if (row == null) null
    else {
      val value = valueOf(Row.root(row), new UnsafeRow(family.valueColumns))
      provider.validateFormat(key, value)
      value
    }
  }

  override def keyExists(key: UnsafeRow, colFamilyName: String): Boolean = find(familyOf("keyExists", colFamilyName), key) != null

  override def multiGet(keys: Array[UnsafeRow], colFamilyName: String): Iterator[UnsafeRow] = keys.iterator.map(get(_, colFamilyName))

  override def valuesIterator(key: UnsafeRow, colFamilyName: String): Iterator[UnsafeRow] = {
    val family = needMultiple("valuesIterator", colFamilyName)
    valuesOf(find(family, key), family)
  }

  /** All pairs as of now; in the order of their bytes where keys can be scanned by range. Pair and rows are reused. */
  override def iterator(colFamilyName: String): StateStoreIterator[UnsafeRowPair] = {
    val family = familyOf("iterator", colFamilyName)
    pairs(all(family), family)
  }

  override def iteratorWithMultiValues(colFamilyName: String): StateStoreIterator[UnsafeRowPair] = {
    val family = needMultiple("iteratorWithMultiValues", colFamilyName)
    valuePairs(all(family), family)
  }

  override def prefixScan(prefixKey: UnsafeRow, colFamilyName: String): StateStoreIterator[UnsafeRowPair] = {
    val family = familyOf("prefixScan", colFamilyName)
    pairs(prefixed(family, prefixKey), family)
  }

  override def prefixScanWithMultiValues(prefixKey: UnsafeRow, colFamilyName: String): StateStoreIterator[UnsafeRowPair] = {
    val family = needMultiple("prefixScanWithMultiValues", colFamilyName)
    valuePairs(prefixed(family, prefixKey), family)
  }

  override def rangeScan(startKey: Option[UnsafeRow], endKey: Option[UnsafeRow], colFamilyName: String): StateStoreIterator[UnsafeRowPair] = {
    val family = familyOf("rangeScan", colFamilyName)
    pairs(range(family, startKey, endKey), family)
  }

  override def rangeScanWithMultiValues(startKey: Option[UnsafeRow], endKey: Option[UnsafeRow], colFamilyName: String): StateStoreIterator[UnsafeRowPair] = {
    val family = needMultiple("rangeScanWithMultiValues", colFamilyName)
    valuePairs(range(family, startKey, endKey), family)
  }

  override def allColumnFamilyNames: Set[String] = schema.ids.keySet + StateStore.DEFAULT_COL_FAMILY_NAME

  protected def forgetFamily(name: String): Unit = {
    open.remove(name)
    lastName = null
  }

  protected def familyOf(operation: String, name: String): OpenFamily =
    if (name == lastName) last
    else {
      val family = open.getOrElseUpdate(name, provider.openFamily(operation, name, schema, isWriter))
      lastName = name
      last = family
      family
    }

  protected def needMultiple(operation: String, name: String): OpenFamily = {
    val family = familyOf(operation, name)
    if (!family.family.multipleValues) {
      throw new IllegalStateException(s"$operation requires an encoder that supports multiple values for a single key, column family $name has none")
    }
    family
  }

  protected def find(family: OpenFamily, key: UnsafeRow): AnyRef = {
    mustBeKey(key)
    if (family.encoder == null) view.get(family.id, key.getBaseObject, key.getBaseOffset, key.getSizeInBytes)
    else {
      val bytes = family.encoder.encodeKey(key)
      view.get(family.id, bytes, Platform.BYTE_ARRAY_OFFSET, bytes.length)
    }
  }

  protected def mustBeKey(key: UnsafeRow): Unit = if (key == null) throw new IllegalStateException("Key cannot be null")

  protected def range(family: OpenFamily, startKey: Option[UnsafeRow], endKey: Option[UnsafeRow]): RowIterator = {
    require(family.scansInOrder, "Range scan requires an encoder that supports range scans!")
    // The encoder may give the same array twice, so the first is copied.
    val from = startKey.map(family.encoder.encodeKey(_).clone())
    view.scan(family.id, from.orNull, endKey.map(family.encoder.encodeKey).orNull)
  }

  private def all(family: OpenFamily): RowIterator = if (family.scansInOrder) view.scan(family.id, null, null) else view.rows(family.id)

  private def prefixed(family: OpenFamily, prefixKey: UnsafeRow): RowIterator = {
    require(family.encoder != null && family.encoder.supportPrefixKeyScan, "Prefix scan requires setting prefix key!")
    val prefix = family.encoder.encodePrefixKey(prefixKey)
    view.scan(family.id, prefix.clone(), VersionReads.after(prefix))
  }

  private def pairs(rows: RowIterator, family: OpenFamily): StateStoreIterator[UnsafeRowPair] = {
    val key = new UnsafeRow(family.keyColumns)
    val value = new UnsafeRow(family.valueColumns)
    val pair = new UnsafeRowPair()
    new StateStoreIterator(new Advancing[UnsafeRowPair](rows) {
      override protected def show(row: AnyRef): UnsafeRowPair = {
        val entry = Row.root(row)
        val shown = pair.withRows(family.keyOf(entry, key), valueOf(entry, value))
        provider.validateFormat(shown.key, shown.value)
        shown
      }
    }, () => rows.close())
  }

  private def valuePairs(rows: RowIterator, family: OpenFamily): StateStoreIterator[UnsafeRowPair] = {
    val key = new UnsafeRow(family.keyColumns)
    val pair = new UnsafeRowPair()
    val lists = new Advancing[Iterator[UnsafeRowPair]](rows) {
      override protected def show(row: AnyRef): Iterator[UnsafeRowPair] = {
        val shownKey = family.keyOf(Row.root(row), key)
        valuesOf(row, family).map(pair.withRows(shownKey, _))
      }
    }
    new StateStoreIterator(lists.flatten, () => rows.close())
  }

  /** The values of a row, in the order in which they were appended; null: none. */
  private def valuesOf(row: AnyRef, family: OpenFamily): Iterator[UnsafeRow] = row match {
    case null => Iterator.empty
    case entry: Array[Byte] => Iterator.single(valueOf(entry, new UnsafeRow(family.valueColumns)))
    case list: ValueList =>
      val value = new UnsafeRow(family.valueColumns)
      Iterator.single(list.first).map(valueOf(_, value)) ++ list.valuesSince(null).iterator.map { bytes =>
        value.pointTo(bytes, bytes.length)
        value
      }
  }

  private def valueOf(entry: Array[Byte], row: UnsafeRow): UnsafeRow = {
    row.pointTo(entry, Entry.valueOffset(entry), Entry.valueLength(entry))
    row
  }
}

private[spark] object VersionReads {
  /** The smallest key that is larger than every key with this prefix; null: there is none. */
  def after(prefix: Array[Byte]): Array[Byte] = {
    var last = prefix.length - 1
    while (last >= 0 && prefix(last) == -1) last -= 1
    if (last < 0) null
    else {
      val next = java.util.Arrays.copyOf(prefix, last + 1)
      next(last) = (next(last) + 1).toByte
      next
    }
  }
}

/** A Scala iterator over rows. */
private[spark] abstract class Advancing[A](rows: RowIterator) extends Iterator[A] {
  private[this] var advanced = false
  private[this] var has = false

  protected def show(row: AnyRef): A

  override def hasNext: Boolean = {
    if (!advanced) {
      has = rows.advance()
      advanced = true
    }
    has
  }

  override def next(): A = {
    if (!hasNext) throw new NoSuchElementException("the state has no more rows")
    advanced = false
    show(rows.row)
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
    private[spark] val load: Option[Load]) extends VersionReads {
  protected val view = new OpenVersion(base, NoChanges)
  override protected def isWriter: Boolean = false
  schema = provider.schemaOf(base)

  override def version: Long = base.number

  /** The state reader registers on one store and reads from the next, so families are the provider's. */
  override def registerColFamily(
      colFamilyName: String, keySchema: StructType, valueSchema: StructType, keyStateEncoderSpec: KeyStateEncoderSpec,
      useMultipleValuesPerKey: Boolean, isInternal: Boolean): Unit =
    provider.register(ColumnFamily(colFamilyName, keyStateEncoderSpec, valueSchema, useMultipleValuesPerKey, isInternal))

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
 * One that `isWhole` stands on nothing: all its rows are kept here, and written at commit.
 *
 * Changes are legal while UPDATING only; reads, metrics and a second abort always. Used by one thread at a time, but not
 * always by the task's own (PySpark's state server), so `commit` and `abort` are synchronized.
 */
final class DynamoDBStateStore private[spark] (
    protected val provider: DynamoDBStateStoreProvider,
    base: Version,
    baseCheckpointId: Option[String],
    load: Option[Load],
    isWhole: Boolean = false) extends StateStore43 with VersionReads with ChangeSink {
  import DynamoDBStateStore._

  protected val view = new OpenVersion(base, this)
  override protected def isWriter: Boolean = true
  schema = provider.schemaOf(base)

  private[this] val attempt = Attempt.random()
  private[this] var connection: Connection = _
  @volatile private[this] var state: Phase = Updating
  private[this] var read, committed, maintained = Map.empty[String, Long]
  private[this] var commitMillis = 0L

  // Spark aborts write stores of StateStoreRDD only; joins and others rely on the store itself.
  Option(TaskContext.get()).foreach(_.addTaskCompletionListener[Unit](_ => abort()))

  override def version: Long = base.number

  override def put(key: UnsafeRow, value: UnsafeRow, colFamilyName: String): Unit = {
    mustBeUpdating("put")
    require(value != null, "Cannot put a null value")
    putValue(familyOf("put", colFamilyName), key, value, isAppended = false)
  }

  override def putList(key: UnsafeRow, values: Array[UnsafeRow], colFamilyName: String): Unit = {
    mustBeUpdating("putList")
    mustBeValues(values)
    val family = needMultiple("putList", colFamilyName)
    if (values.isEmpty) removeKey(family, key)
    else values.indices.foreach(at => putValue(family, key, values(at), isAppended = at > 0))
  }

  override def merge(key: UnsafeRow, value: UnsafeRow, colFamilyName: String): Unit = {
    mustBeUpdating("merge")
    require(value != null, "Cannot merge a null value")
    putValue(needMultiple("merge", colFamilyName), key, value, isAppended = true)
  }

  override def mergeList(key: UnsafeRow, values: Array[UnsafeRow], colFamilyName: String): Unit = {
    mustBeUpdating("mergeList")
    mustBeValues(values)
    val family = needMultiple("mergeList", colFamilyName)
    values.foreach(putValue(family, key, _, isAppended = true))
  }

  override def remove(key: UnsafeRow, colFamilyName: String): Unit = {
    mustBeUpdating("remove")
    removeKey(familyOf("remove", colFamilyName), key)
  }

  override def deleteRange(beginKey: UnsafeRow, endKey: UnsafeRow, colFamilyName: String): Unit = {
    mustBeUpdating("deleteRange")
    val family = familyOf("deleteRange", colFamilyName)
    if (!family.supportsDeleteRange) {
      throw new IllegalStateException(s"deleteRange requires an encoder that supports it, column family $colFamilyName has none")
    }
    val rows = range(family, Some(beginKey), Some(endKey))
    while (rows.advance()) {
      val root = Row.root(rows.row)
      view.remove(family.id, root, Entry.KeyOffset, Entry.keyLength(root))
    }
  }

  override def createColFamilyIfAbsent(
      colFamilyName: String, keySchema: StructType, valueSchema: StructType, keyStateEncoderSpec: KeyStateEncoderSpec,
      useMultipleValuesPerKey: Boolean, isInternal: Boolean): Unit = {
    mustBeUpdating("createColFamilyIfAbsent")
    provider.mustTakeFamily("create_col_family", colFamilyName, isInternal)
    val family = ColumnFamily(colFamilyName, keyStateEncoderSpec, valueSchema, useMultipleValuesPerKey, isInternal)
    provider.register(family)
    schema = schema.add(family)
    forgetFamily(colFamilyName)
  }

  override def removeColFamilyIfExists(colFamilyName: String): Boolean = {
    mustBeUpdating("removeColFamilyIfExists")
    provider.mustTakeFamily("remove_col_family", colFamilyName, isInternal = false)
    val existed = schema.ids.contains(colFamilyName)
    if (existed) {
      // Its rows go one by one: they cost their keys, and nothing has to know later that a family was once dropped.
      view.clear(schema.ids(colFamilyName))
      schema = schema.drop(colFamilyName)
    }
    forgetFamily(colFamilyName)
    existed
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
      val next = view.fold(attempt, schema.text) // 2
      committed = if (isWhole) provider.commitWhole(next) else commitAttempt(next.keys) // 3
      read = provider.takeRead()
      maintained = provider.takeMaintained()
      if (!isWhole) provider.retainCommitted(base, next) // 4
      view.show(next)
      state = Committed
      provider.reportCommit(next.number) // 5
      commitMillis = NANOSECONDS.toMillis(System.nanoTime() - started)
      next.number
    } catch {
      case NonFatal(e) =>
        // The changes may be folded and sent already: a second commit of this store would make a version without them.
        abort()
        throw SparkInternals.failedToCommit(toString, e)
    }
  }

  override def abort(): Unit = synchronized {
    if (state == Updating) {
      state = Aborted
      view.drop()
      if (connection != null) {
        connection.abort()
        // The engine is busy deleting what the attempt wrote; nobody should have to wait for that.
        connection.close()
        connection = null
      }
      log.info(s"aborted store=${provider.storeName} version=${version + 1} attempt=$attempt")
    }
  }

  override def release(): Unit = abort()

  override def hasCommitted: Boolean = state == Committed

  override def metrics: StateStoreMetrics = {
    val shown = view.version
    val (internal, rows) = shown.keys.zipWithIndex.partition { case (_, family) => schema.internalIds.contains(family) }
    val own = ProviderMetrics.of(load, read, committed, maintained, commitMillis, internal.map(_._1).sum)
    StateStoreMetrics(rows.map(_._1).sum, shown.tree.heapBytes(shown) + view.heapBytes, ProviderMetrics.ofJoin(provider.storeName, version, own))
  }

  override def getStateStoreCheckpointInfo(): StateStoreCheckpointInfo = {
    if (state != Committed) throw StateStoreErrors.stateStoreOperationOutOfOrder("checkpoint info is asked for before commit")
    val checkpointId = if (provider.config.enableStateStoreCheckpointIds) Some(attempt.checkpointId) else None
    StateStoreCheckpointInfo(id.partitionId, version + 1, checkpointId, baseCheckpointId)
  }

  /** One chunk of changes, on its way to the engine; the first one starts the attempt there. */
  override def append(records: Int, hashMin: Int, hashMax: Int, run: Array[Byte], length: Int): Unit =
    if (!isWhole) leased().append(records, hashMin, hashMax, run, length, provider.deadlineSeconds)

  override def toString: String = s"DynamoDBStateStore[store=${provider.storeName}, version=$version, attempt=$attempt]"

  private def putValue(family: OpenFamily, key: UnsafeRow, value: UnsafeRow, isAppended: Boolean): Unit = {
    mustBeKey(key)
    var keyBase: AnyRef = key.getBaseObject
    var keyOffset = key.getBaseOffset
    var keyLength = key.getSizeInBytes
    if (family.encoder != null) {
      val bytes = family.encoder.encodeKey(key)
      keyBase = bytes
      keyOffset = Platform.BYTE_ARRAY_OFFSET
      keyLength = bytes.length
    }
    if (isAppended) view.merge(family.id, keyBase, keyOffset, keyLength, value.getBaseObject, value.getBaseOffset, value.getSizeInBytes)
    else view.put(family.id, keyBase, keyOffset, keyLength, value.getBaseObject, value.getBaseOffset, value.getSizeInBytes)
  }

  private def removeKey(family: OpenFamily, key: UnsafeRow): Unit = {
    mustBeKey(key)
    if (family.encoder == null) view.remove(family.id, key.getBaseObject, key.getBaseOffset, key.getSizeInBytes)
    else {
      val bytes = family.encoder.encodeKey(key)
      view.remove(family.id, bytes, Platform.BYTE_ARRAY_OFFSET, bytes.length)
    }
  }

  private def mustBeValues(values: Array[UnsafeRow]): Unit = {
    require(values != null, "Cannot put a null value")
    require(values.forall(_ != null), "Cannot put a null value in the array")
  }

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
    try {
      val counters = last.commit(keys, schema.text, provider.deadlineSeconds)
      last.giveBack()
      counters
    } catch {
      // The engine is still busy deleting what the attempt wrote; nobody should have to wait for that.
      case e: Throwable => last.close(); throw e
    }
  }

  private def mustBeUpdating(operation: String): Unit =
    if (state != Updating) throw StateStoreErrors.stateStoreOperationOutOfOrder(s"$operation after $state")
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
