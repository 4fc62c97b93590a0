package io.dynastate.memory

import java.util.concurrent.{CompletableFuture, ExecutionException}
import java.util.concurrent.atomic.{AtomicBoolean, AtomicInteger}

/** One version that is being loaded. A row that is needed before the load is complete is read with its bucket, so that
 * a task starts on the first rows it needs. The load reads every bucket again, so a task reads only a few alone, and
 * then waits for the load. So do operations on more than single rows; versions made from this one belong to the loaded
 * version's tree.
 *
 * @param load begins to load the version with all its rows, and completes the future with it or an error. It is called
 *             after the first bucket was read, which it would delay, or when all rows are needed.
 */
final class LoadingVersions(source: BucketSource, load: CompletableFuture[Version] => Unit) extends Versions {
  import LoadingVersions._

  private[this] val few = new BucketedVersions(new BucketCache(Long.MaxValue), source, 0L)
  /** The version as the few buckets that were read alone; null as soon as all rows are in memory. */
  @volatile private[this] var interim: Version = _
  private[this] val requests = new AtomicInteger
  private[this] val isBegun = new AtomicBoolean
  private[this] val whole = new CompletableFuture[Version]

  /** The version, from what FIND says of it. */
  def begin(number: Long, attempt: Attempt, schema: String, keys: Array[Long], bits: Int): Version = {
    interim = few.absent(number, attempt, schema, keys, bits)
    whole.thenRun(() => interim = null)
    new LoadingVersion(number, attempt, schema, this, keys)
  }

  override def changed: ChangedBuckets = loaded.versions.changed

  override def get(version: Version, family: Int, hash: Int, base: AnyRef, offset: Long, length: Int,
      into: Row): Boolean = {
    val current = interim
    if (current != null && few.isInMemory(current, hash)) few.get(current, family, hash, base, offset, length, into)
    else if (current != null && requests.incrementAndGet() <= AskedMax) {
      try few.get(current, family, hash, base, offset, length, into)
      finally beginToLoad()
    } else loaded.versions.get(loaded, family, hash, base, offset, length, into)
  }

  override def mayHave(version: Version, family: Int, hash: Int, base: AnyRef, offset: Long, length: Int): Boolean =
    if (interim == null) loaded.versions.mayHave(loaded, family, hash, base, offset, length)
    else super.mayHave(version, family, hash, base, offset, length)

  override def bucketBits(version: Version): Int = loaded.versions.bucketBits(loaded)

  override def share(version: Version, family: Int, bucket: Int): List[Slots] =
    loaded.versions.share(loaded, family, bucket)

  override def share(version: Version, bucket: Int): Array[List[Slots]] = loaded.versions.share(loaded, bucket)

  override def scanBatch(wanted: Int): Int = loaded.versions.scanBatch(wanted)

  override def scan(version: Version, family: Int, from: Row, inclusive: Boolean, to: Row, limit: Int): RowBatch =
    loaded.versions.scan(loaded, family, from, inclusive, to, limit)

  override def fold(base: Version, changes: RowTables, number: Long, attempt: Attempt, schema: String): Version =
    loaded.versions.fold(loaded, changes, number, attempt, schema)

  override def durable(version: Version): Version = loaded.versions.durable(loaded)

  /** Of the rows in memory: metrics do not wait for the load. */
  override def heapBytes(version: Version): Long = {
    val current = interim
    if (current != null) few.heapBytes(current) else loaded.versions.heapBytes(loaded)
  }

  override def undoBytes(version: Version): Long = if (interim != null) 0L else loaded.versions.undoBytes(loaded)

  override def isUsable: Boolean = interim != null || loaded.versions.isUsable

  override def isHalfChanged: Boolean = interim == null && loaded.versions.isHalfChanged

  override def disk: DiskUse = if (interim != null) DiskUse.None else loaded.versions.disk

  override def stateBytes(version: Version): Long = loaded.versions.stateBytes(loaded)

  private def beginToLoad(): Unit = if (isBegun.compareAndSet(false, true)) load(whole)

  private def loaded: Version = {
    beginToLoad()
    try whole.get()
    catch { case e: ExecutionException => throw e.getCause }
  }
}

object LoadingVersions {
  /** Buckets that are read alone: few enough that time and memory are small beside the load's. */
  private[memory] val AskedMax = 16

  private final class LoadingVersion(number: Long, attempt: Attempt, schema: String, tree: LoadingVersions,
      keys: Array[Long])
    extends Version(number, attempt, schema, tree, keys)
}
