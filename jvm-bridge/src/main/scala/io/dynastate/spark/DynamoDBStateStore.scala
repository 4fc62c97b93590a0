package io.dynastate.spark

import java.util.concurrent.TimeUnit.NANOSECONDS

import scala.util.control.NonFatal

import io.dynastate.bridge.Connection
import io.dynastate.memory.{Attempt, ChangeSink, ValueSuffix, Version, VersionOverlay}
import org.slf4j.LoggerFactory

import org.apache.spark.sql.catalyst.expressions.UnsafeRow
import org.apache.spark.sql.dynastate.internals.SparkInternals
import org.apache.spark.sql.execution.streaming.state._
import org.apache.spark.sql.types.StructType
import org.apache.spark.unsafe.Platform

/** One attempt: a version opened to make the next one.
 *
 * {{{
 * UPDATING --beginCommit--> COMMITTING --commit--> COMMITTED    then reads show the new version
 * UPDATING or COMMITTING --abort--> ABORTED                     then reads show the base
 * }}}
 *
 * One that `isImport` is imported: all its rows are kept here, and written at commit. After the commit of one that
 * `forcesSnapshot` the next maintenance makes a snapshot.
 *
 * Changes are legal while UPDATING only; reads, metrics and a second abort always. Used by one thread at a time, but
 * not always by the task's own (PySpark's state server), so `commit` and `abort` are synchronized, and either may come
 * while another thread sends changes.
 */
final class DynamoDBStateStore private[spark] (protected val provider: DynamoDBStateStoreProvider, base: Version,
    baseCheckpointId: Option[String], load: Option[Load], forcesSnapshot: Boolean = false, isImport: Boolean = false)
  extends StateStore43 with VersionReads with ChangeSink {
  import DynamoDBStateStore._

  protected val overlay = new VersionOverlay(base, this)
  override protected def isWriter: Boolean = true
  schema = provider.families.schemaOf(base)

  private[this] val attempt = Attempt.random()
  private[this] val hasRowChecksums = provider.hasRowChecksums
  private[this] val connection = new AttemptConnection(provider.client, base, attempt)
  @volatile private[this] var state: Phase = Updating
  /** While COMMITTING: the version to come, and where the answer to its commit will arrive; null for an import. */
  private[this] var next: Version = _
  private[this] var answer: Connection = _
  private[this] var read, commitCounters, maintenanceCounters = Map.empty[String, Long]
  private[this] var commitMillis = 0L
  private[this] var sentBytes = 0L
  private[this] val diskBefore = base.versions.disk

  TaskStores.add(this)

  override def version: Long = base.number

  override def put(key: UnsafeRow, value: UnsafeRow, colFamilyName: String): Unit = {
    requireUpdating("put")
    require(value != null, "Cannot put a null value")
    putValue(familyOf("put", colFamilyName), key, value, isAppended = false)
  }

  override def putList(key: UnsafeRow, values: Array[UnsafeRow], colFamilyName: String): Unit = {
    requireUpdating("putList")
    requireValues(values)
    val family = multipleFamilyOf("putList", colFamilyName)
    if (values.isEmpty) removeKey(family, key)
    else values.indices.foreach(at => putValue(family, key, values(at), isAppended = at > 0))
  }

  override def merge(key: UnsafeRow, value: UnsafeRow, colFamilyName: String): Unit = {
    requireUpdating("merge")
    require(value != null, "Cannot merge a null value")
    putValue(multipleFamilyOf("merge", colFamilyName), key, value, isAppended = true)
  }

  override def mergeList(key: UnsafeRow, values: Array[UnsafeRow], colFamilyName: String): Unit = {
    requireUpdating("mergeList")
    requireValues(values)
    val family = multipleFamilyOf("mergeList", colFamilyName)
    values.foreach(putValue(family, key, _, isAppended = true))
  }

  override def remove(key: UnsafeRow, colFamilyName: String): Unit = {
    requireUpdating("remove")
    removeKey(familyOf("remove", colFamilyName), key)
  }

  override def deleteRange(beginKey: UnsafeRow, endKey: UnsafeRow, colFamilyName: String): Unit = {
    requireUpdating("deleteRange")
    val family = familyOf("deleteRange", colFamilyName)
    if (!family.supportsDeleteRange) throw new IllegalStateException(
      s"deleteRange requires an encoder that supports it, column family $colFamilyName has none")
    val rows = range(family, Some(beginKey), Some(endKey))
    while (rows.advance()) overlay.remove(family.id, rows.row.bytes, rows.row.keyOffset, rows.row.keyLength)
  }

  override def createColFamilyIfAbsent(colFamilyName: String, keySchema: StructType, valueSchema: StructType,
      keyStateEncoderSpec: KeyStateEncoderSpec, useMultipleValuesPerKey: Boolean, isInternal: Boolean): Unit = {
    requireUpdating("createColFamilyIfAbsent")
    provider.families.validateName(provider.toString, "create_col_family", colFamilyName, isInternal)
    schema = schema.add(provider.families.register(colFamilyName, keyStateEncoderSpec, valueSchema,
        useMultipleValuesPerKey, isInternal))
    forgetFamily(colFamilyName)
  }

  override def removeColFamilyIfExists(colFamilyName: String): Boolean = {
    requireUpdating("removeColFamilyIfExists")
    provider.families.validateName(provider.toString, "remove_col_family", colFamilyName, isInternal = false)
    val hadFamily = schema.ids.contains(colFamilyName)
    if (hadFamily) {
      // Removed one by one: that costs their keys, and no format has to know that a family was dropped.
      overlay.clear(schema.ids(colFamilyName))
      schema = schema.drop(colFamilyName)
    }
    forgetFamily(colFamilyName)
    hadFamily
  }

  /** Make the next version durable, then visible. The stores that the task writes for the same operator begin theirs at
   * the same time: a stream-stream join has four, whose requests overlap. Spark's own join commits all of them, or its
   * task fails.
   *
   * 1. Send what has not been sent; the engine compresses and writes it in the background. (Failure: nothing is
   *    committed.)
   * 2. Meanwhile fold the changes into memory, as a version that is not visible yet. (Failure: it is garbage.)
   * 3. Commit: the engine waits until every part is durable and appends the version entry. (Failure: as the error says;
   *    the folded version is garbage, and the base is as readable as before.)
   * 4. Retain the new version, and show it.
   * 5. Report to Spark's coordinator, which checks that every partition committed.
   */
  override def commit(): Long = {
    val startNanos = System.nanoTime()
    requireUncommitted()
    beginCommit()
    TaskStores.besides(this).foreach(_.beginCommit())
    completeCommit(startNanos)
  }

  /** It has neither committed nor aborted. */
  private[spark] def isUnderWay: Boolean = state == Updating || state == Committing

  /** Steps 1 and 2, and the request of 3. After that the store takes no changes. */
  private[spark] def beginCommit(): Unit = synchronized(if (state == Updating) orAbort {
    provider.marker.write()
    overlay.flush() // 1
    if (sentBytes >= FlushedBytesMin) connection.get().flush(provider.client.deadlineSeconds)
    next = overlay.fold(attempt, schema.text) // 2
    if (!isImport) {
      answer = connection.get()
      connection.end()
      answer.beginCommit(next, schema.text, provider.client.deadlineSeconds)
    }
    state = Committing
  })

  private def completeCommit(startNanos: Long): Long = synchronized {
    requireUncommitted()
    orAbort {
      commitCounters = if (isImport) provider.maintenance.importVersion(next) else committed() // 3
      read = provider.read.take()
      maintenanceCounters = provider.maintained.take()
      if (!isImport) provider.retained.retainCommitted(base, next) // 4
      overlay.show(next)
      state = Committed
      if (forcesSnapshot) provider.maintenance.forceSnapshot(next)
      provider.reportCommit(next.number) // 5
      commitMillis = NANOSECONDS.toMillis(System.nanoTime() - startNanos)
      next.number
    }
  }

  override def abort(): Unit = synchronized {
    if (isUnderWay) {
      state = Aborted
      overlay.discard()
      // Not for the pool: the engine is busy deleting what the attempt wrote.
      Option(if (answer == null) connection.end() else answer).foreach(_.abort())
      log.info(s"aborted store=${provider.client.store} version=${version + 1} attempt=$attempt")
    }
  }

  override def release(): Unit = abort()

  override def hasCommitted: Boolean = state == Committed

  override def metrics: StateStoreMetrics = {
    val version = overlay.version
    val (internal, rows) = version.keys.zipWithIndex.partition { case (_, family) =>
      schema.internalIds.contains(family)
    }
    val disk = version.versions.disk.since(diskBefore)
    val ownMetrics =
      ProviderMetrics.of(load, read, commitCounters, maintenanceCounters, disk, commitMillis, internal.map(_._1).sum,
        forcesSnapshot)
    // Of the rows, of what undoes their last changes, and of the changes under way.
    val heapBytes = version.versions.heapBytes(version) + provider.retained.undoBytes + overlay.heapBytes
    StateStoreMetrics(rows.map(_._1).sum, heapBytes,
      ProviderMetrics.ofJoin(provider.client.store, base.number, ownMetrics))
  }

  override def getStateStoreCheckpointInfo(): StateStoreCheckpointInfo = {
    if (state != Committed)
      throw StateStoreErrors.stateStoreOperationOutOfOrder("checkpoint info is asked for before commit")
    val checkpointId = if (provider.usesCheckpointIds) Some(attempt.checkpointId) else None
    StateStoreCheckpointInfo(id.partitionId, version + 1, checkpointId, baseCheckpointId)
  }

  /** Send a chunk of changes to the engine; the first one begins the attempt there. */
  override def append(records: Int, hashMin: Int, hashMax: Int, chunk: Array[Byte], length: Int): Unit =
    if (!isImport) {
      connection.get().append(records, hashMin, hashMax, chunk, length, provider.client.deadlineSeconds)
      sentBytes += length
    }

  override def toString: String =
    s"DynamoDBStateStore[store=${provider.client.store}, version=$version, attempt=$attempt]"

  private def putValue(family: OpenFamily, key: UnsafeRow, value: UnsafeRow, isAppended: Boolean): Unit = {
    requireKey(key)
    var keyBase: AnyRef = key.getBaseObject
    var keyOffset = key.getBaseOffset
    var keyLength = key.getSizeInBytes
    if (family.encoder != null) {
      val bytes = family.encoder.encodeKey(key)
      keyBase = bytes
      keyOffset = Platform.BYTE_ARRAY_OFFSET
      keyLength = bytes.length
    }
    var valueBase: AnyRef = value.getBaseObject
    var valueOffset = value.getBaseOffset
    var valueLength = value.getSizeInBytes
    if (hasRowChecksums || family.schemaId != 0) {
      val bytes = ValueSuffix.append(keyBase, keyOffset, keyLength, valueBase, valueOffset, valueLength,
        family.schemaId, hasRowChecksums)
      valueBase = bytes
      valueOffset = Platform.BYTE_ARRAY_OFFSET + keyLength
      valueLength = bytes.length - keyLength
    }
    if (isAppended) overlay.merge(family.id, keyBase, keyOffset, keyLength, valueBase, valueOffset, valueLength)
    else overlay.put(family.id, keyBase, keyOffset, keyLength, valueBase, valueOffset, valueLength)
  }

  private def removeKey(family: OpenFamily, key: UnsafeRow): Unit = {
    requireKey(key)
    if (family.encoder == null) overlay.remove(family.id, key.getBaseObject, key.getBaseOffset, key.getSizeInBytes)
    else {
      val bytes = family.encoder.encodeKey(key)
      overlay.remove(family.id, bytes, Platform.BYTE_ARRAY_OFFSET, bytes.length)
    }
  }

  private def requireValues(values: Array[UnsafeRow]): Unit = {
    require(values != null, "Cannot put a null value")
    require(values.forall(_ != null), "Cannot put a null value in the array")
  }

  /** Wait for the answer of the engine, where the attempt then ends. */
  private def committed(): Map[String, Long] = {
    val counters = answer.committed(provider.client.deadlineSeconds)
    answer.release()
    answer = null
    counters
  }

  /** Do a part of a commit. After a failure the changes may be folded and sent already: a second commit of this store
   * would commit a version without them.
   */
  private def orAbort[A](body: => A): A =
    try body
    catch { case NonFatal(e) => abort(); throw SparkInternals.failedToCommit(toString, e) }

  private def requireUncommitted(): Unit = if (state != Committing) requireUpdating("commit")

  private def requireUpdating(operation: String): Unit =
    if (state != Updating) throw StateStoreErrors.stateStoreOperationOutOfOrder(s"$operation after $state")
}

private[spark] object DynamoDBStateStore {
  private val log = LoggerFactory.getLogger("io.dynastate.Store")
  /** Fewer bytes of changes are written in less time than their rows are folded, and wait for the commit. */
  private val FlushedBytesMin = 64L * 1024

  sealed abstract class Phase(name: String) {
    override def toString: String = name
  }
  case object Updating extends Phase("updating")
  case object Committing extends Phase("a commit that began")
  case object Committed extends Phase("commit")
  case object Aborted extends Phase("abort")
}
