package io.dynastate.core

import java.util.concurrent.{CompletableFuture, ExecutionException}
import java.util.concurrent.atomic.{AtomicBoolean, AtomicInteger}

/**
 * One version whose rows are on their way. A row that is asked for before they are all there is read with its bucket, so a task
 * starts on the first rows it needs. Every bucket is read once more with the whole, so only a few are: a task that asks for rows of
 * more of them waits. So does whatever needs more than single rows, and versions that are made from this one are those of the whole's tree.
 *
 * @param load begins to load the version with all its rows, and says when they are there, or what went wrong. It is called when the first
 *             bucket has come, which would come later beside it, or when the whole is asked for.
 */
final class LoadingVersions(source: BucketSource, load: CompletableFuture[Version] => Unit) extends Versions {
  import LoadingVersions._

  private[this] val few = new BucketedVersions(new BucketCache(Long.MaxValue), source, 0L)
  /** The version as the few buckets that were asked for meanwhile; null as soon as all rows are there. */
  @volatile private[this] var meanwhile: Version = _
  private[this] val asked = new AtomicInteger
  private[this] val isBegun = new AtomicBoolean
  private[this] val whole = new CompletableFuture[Version]

  /** The version, by what is known of it before its rows are. */
  def begin(number: Long, attempt: Attempt, schema: String, keys: Array[Long], bits: Int): Version = {
    meanwhile = few.absent(number, attempt, schema, keys, bits)
    whole.thenRun(() => meanwhile = null)
    new LoadingVersion(number, attempt, schema, this, keys)
  }

  override def changed: ChangedBuckets = loaded.tree.changed

  override def find(version: Version, family: Int, hash: Int, base: AnyRef, offset: Long, length: Int): AnyRef = {
    val now = meanwhile
    if (now != null && few.isThere(now, hash)) few.find(now, family, hash, base, offset, length)
    else if (now != null && asked.incrementAndGet() <= AskedMax) {
      try few.find(now, family, hash, base, offset, length) finally beginToLoad()
    } else loaded.tree.find(loaded, family, hash, base, offset, length)
  }

  override def bucketBits(version: Version): Int = loaded.tree.bucketBits(loaded)

  override def share(version: Version, family: Int, bucket: Int): List[Slots] = loaded.tree.share(loaded, family, bucket)

  override def share(version: Version, bucket: Int): Array[List[Slots]] = loaded.tree.share(loaded, bucket)

  override def scanBatch(isFirst: Boolean): Int = loaded.tree.scanBatch(isFirst)

  override def scan(
      version: Version, family: Int, from: Array[Byte], inclusive: Boolean, to: Array[Byte], limit: Int): java.util.ArrayList[AnyRef] =
    loaded.tree.scan(loaded, family, from, inclusive, to, limit)

  override def fold(base: Version, changes: Families, number: Long, attempt: Attempt, schema: String): Version =
    loaded.tree.fold(loaded, changes, number, attempt, schema)

  /** Of what is there: nobody waits to be told how much there is. */
  override def heapBytes(version: Version): Long = {
    val now = meanwhile
    if (now != null) few.heapBytes(now) else loaded.tree.heapBytes(loaded)
  }

  override def stateBytes(version: Version): Long = loaded.tree.stateBytes(loaded)

  private def beginToLoad(): Unit = if (isBegun.compareAndSet(false, true)) load(whole)

  private def loaded: Version = {
    beginToLoad()
    try whole.get()
    catch { case e: ExecutionException => throw e.getCause }
  }
}

object LoadingVersions {
  /** Buckets that are read singly: what they cost more is little beside the whole, and so is the memory that they take. */
  private[core] val AskedMax = 16

  private final class LoadingVersion(number: Long, attempt: Attempt, schema: String, tree: LoadingVersions, keys: Array[Long])
    extends Version(number, attempt, schema, tree, keys)
}
