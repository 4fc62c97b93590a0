package io.dynastate.memory

import java.util.LinkedHashSet
import java.util.concurrent.ConcurrentHashMap

/** The rows whose hashes lie in one range; null: they are not in memory. Who has read them may keep using them. */
private[memory] final class Bucket(val owner: AnyRef, @volatile var rows: RowTables) {
  /** Used since the cache last considered it. */
  @volatile var isUsed = false
  /** Its bytes in the cache's total. */
  var countedBytes = 0L

  def bytesThere: Long = {
    val tables = rows
    if (tables == null) 0L else tables.heapBytes
  }
}

/** Limits the bytes of all buckets in memory. It first evicts those that a newer version has replaced, then the oldest
 * of those that were not used since it last considered them (the CLOCK algorithm, F. J. Corbató, 1968). Safe for
 * threads.
 */
final class BucketCache(val limit: Long) {
  private[this] var total = 0L
  private[this] val members = new LinkedHashSet[Bucket]
  private[this] val victims = new LinkedHashSet[Bucket]

  private[this] var reserved = 0L

  /** Bytes of heap of all buckets that can be evicted, and what is reserved. */
  def bytes: Long = synchronized(total)

  /** Reserve bytes for changes that are held: up to a quarter of the limit. False: there is no room. */
  def reserve(bytes: Long): Boolean = synchronized {
    val hasRoom = reserved + bytes <= limit / 4
    if (hasRoom) {
      reserved += bytes
      total += bytes
      makeRoom()
    }
    hasRoom
  }

  /** Return what was reserved. */
  def unreserve(bytes: Long): Unit = synchronized {
    reserved -= bytes
    total -= bytes
  }

  /** Put rows into a bucket. */
  private[memory] def add(bucket: Bucket, rows: RowTables): Unit = synchronized {
    bucket.rows = rows
    count(bucket)
    makeRoom()
  }

  /** Replace buckets by those of the version committed after them. */
  private[memory] def replace(oldBuckets: Iterable[Bucket], newBuckets: Iterable[Bucket]): Unit = synchronized {
    oldBuckets.foreach(bucket => if (members.contains(bucket)) victims.add(bucket))
    newBuckets.foreach(bucket => if (bucket.rows != null) count(bucket))
    makeRoom()
  }

  /** Discard an owner's buckets. */
  private[memory] def discard(owner: AnyRef): Unit =
    synchronized { members.stream.filter(_.owner eq owner).toList.forEach(release(_)) }

  private def count(bucket: Bucket): Unit = if (members.add(bucket)) {
    bucket.countedBytes = bucket.bytesThere
    total += bucket.countedBytes
  }

  private def makeRoom(): Unit = {
    while (total > limit && !victims.isEmpty) release(victims.iterator.next())
    var chances = members.size
    while (total > limit && !members.isEmpty) {
      val oldest = members.iterator.next()
      if (oldest.isUsed && chances > 0) {
        oldest.isUsed = false
        members.remove(oldest)
        members.add(oldest)
      } else release(oldest)
      chances -= 1
    }
  }

  private def release(bucket: Bucket): Unit = {
    members.remove(bucket)
    victims.remove(bucket)
    total -= bucket.countedBytes
    bucket.rows = null
  }
}

object BucketCache {
  private val caches = new ConcurrentHashMap[Long, BucketCache]

  /** The one cache of this process with a limit: all stores of an executor share it. */
  def of(limitBytes: Long): BucketCache = caches.computeIfAbsent(limitBytes, new BucketCache(_))
}
