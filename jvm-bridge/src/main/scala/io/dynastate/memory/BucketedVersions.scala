package io.dynastate.core

import java.util.LinkedHashSet
import java.util.concurrent.ConcurrentHashMap

/** Brings the rows of a version from where they are durable. */
trait BucketSource {
  /** The rows that lie in one of 2^bits buckets. */
  def read(version: Version, bits: Int, bucket: Int): Families
}

/**
 * Versions of a store of which only some rows are in memory: whole buckets, as many as the cache has room for. A bucket that is not
 * there is read when a row of it is asked for.
 *
 * A version is an array of buckets, and shares with the one before it those that did not change. Rows of a bucket never change, so it
 * may give way at any time, but for those of a version that is not committed yet: they are nowhere else.
 *
 * A commit copies the slots of the buckets that it changes, so it costs them whole: this is for state that is larger than the memory it may
 * have, and `VersionTree` for all other.
 */
final class BucketedVersions(cache: BucketCache, source: BucketSource, startsAt: Long, bucketBytes: Long = BucketedVersions.BucketBytes)
  extends Versions {
  import BucketedVersions._

  override val changed = new ChangedBuckets(startsAt)
  /** Bytes of heap of a row, of those that were seen; before, what the number of buckets says of them. */
  @volatile private[this] var rowBytes = 100L
  @volatile private[this] var sawRows = false

  /** Version 0: no rows. */
  def empty(schema: String): Version = new BucketedVersion(0L, Attempt.None, schema, this, Array.empty, 0, Array(new Bucket(this, new Families)))

  /** A version that is durable, of which nothing is in memory. */
  def absent(number: Long, attempt: Attempt, schema: String, keys: Array[Long], bits: Int): Version = {
    if (!sawRows && bits > 0 && keys.sum > 0) rowBytes = math.max(RowBytesMin, (bucketBytes << bits) / keys.sum)
    new BucketedVersion(number, attempt, schema, this, keys, bits, Array.fill(1 << bits)(new Bucket(this, null)))
  }

  override def find(version: Version, family: Int, hash: Int, base: AnyRef, offset: Long, length: Int): AnyRef = {
    val of = version.asInstanceOf[BucketedVersion]
    val table = load(of, ChangedBuckets.bucketOf(hash, of.bits)).existing(family)
    if (table == null) null else table.find(hash, base, offset, length)
  }

  /** Whether the rows of a hash's bucket are in memory. */
  def isThere(version: Version, hash: Int): Boolean = {
    val of = version.asInstanceOf[BucketedVersion]
    of.buckets(ChangedBuckets.bucketOf(hash, of.bits)).rows != null
  }

  override def bucketBits(version: Version): Int = version.asInstanceOf[BucketedVersion].bits

  override def share(version: Version, family: Int, bucket: Int): List[Slots] = {
    val table = peek(version.asInstanceOf[BucketedVersion], bucket).existing(family)
    if (table == null || table.size == 0) Nil else List(table.share())
  }

  override def share(version: Version, bucket: Int): Array[List[Slots]] = {
    val rows = peek(version.asInstanceOf[BucketedVersion], bucket)
    version.keys.indices.toArray.map { family =>
      val table = rows.existing(family)
      if (table == null) Nil else List(table.share())
    }
  }

  /** As many rows as may lie beside the buckets: each further batch passes over the whole state. */
  override def scanBatch(isFirst: Boolean): Int = math.max(ScanRowsMin, cache.limit / 16 / rowBytes).min(Int.MaxValue.toLong).toInt

  /** One pass over all buckets, which keeps the first `limit` rows. */
  override def scan(
      version: Version, family: Int, from: Array[Byte], inclusive: Boolean, to: Array[Byte], limit: Int): java.util.ArrayList[AnyRef] = {
    val first = new java.util.PriorityQueue[AnyRef](Row.byKey.reversed())
    val of = version.asInstanceOf[BucketedVersion]
    of.buckets.indices.foreach { bucket =>
      val table = peek(of, bucket).existing(family)
      if (table != null) {
        val slots = new SlotIterator(Array(table.share()), showDeletes = false)
        try while (slots.advance()) {
          val row = slots.row
          if (isWithin(row, from, inclusive, to)) {
            if (first.size < limit) first.add(row)
            else if (Row.byKey.compare(row, first.peek) < 0) {
              first.poll()
              first.add(row)
            }
          }
        } finally slots.close()
      }
    }
    val rows = new java.util.ArrayList[AnyRef](first)
    rows.sort(Row.byKey)
    rows
  }

  /** Buckets that are not in memory are read to count their keys, one after the other, and not kept. */
  override def fold(base: Version, changes: Families, number: Long, attempt: Attempt, schema: String): Version = {
    require(base.tree eq this, "a version of other buckets")
    changed.add(number, ChangedBuckets.of(changes))
    val before = base.asInstanceOf[BucketedVersion]
    val buckets = before.buckets.clone()
    var keys = java.util.Arrays.copyOf(before.keys, math.max(before.keys.length, changes.bound))
    var rows, bytes = 0L
    byBucket(changes, before.bits).forEach { (number: Integer, of: Families) =>
      val there = buckets(number).rows
      val old = if (there != null) there else source.read(before, before.bits, number)
      val made = changedBy(old, of)
      keys = difference(keys, old.counts, made.counts)
      rows += made.rows
      bytes += made.heapBytes
      buckets(number) = new Bucket(this, if (there != null) made else null)
    }
    if (rows > 0) {
      rowBytes = math.max(RowBytesMin, bytes / rows)
      sawRows = true
    }
    val bits = bitsFor(keys.sum * rowBytes, before.bits, bucketBytes)
    new BucketedVersion(number, attempt, schema, this, keys, bits, split(buckets, before.bits, bits))
  }

  /** What the next version does not share is in the way from now on, and what is new may give way. */
  override def committed(base: Version, next: Version): Unit = {
    val before = base.asInstanceOf[BucketedVersion].buckets
    val after = next.asInstanceOf[BucketedVersion].buckets
    if (before.length != after.length) cache.replace(before, after)
    else {
      val changed = before.indices.filter(bucket => before(bucket) ne after(bucket))
      cache.replace(changed.map(before(_)), changed.map(after(_)))
    }
  }

  override def heapBytes(version: Version): Long = version.asInstanceOf[BucketedVersion].buckets.iterator.map(_.bytesThere).sum

  override def stateBytes(version: Version): Long = math.max(heapBytes(version), version.keys.sum * rowBytes)

  override def close(): Unit = cache.drop(this)

  /** The rows of a bucket, and if they were not there, from now on they are. */
  private def load(version: BucketedVersion, number: Int): Families = {
    val bucket = version.buckets(number)
    val there = bucket.rows
    if (there != null) {
      bucket.isUsed = true
      there
    } else bucket.synchronized {
      // Another thread may have brought them.
      val brought = bucket.rows
      if (brought != null) brought
      else {
        val read = source.read(version, version.bits, number)
        bucket.isUsed = true
        cache.add(bucket, read)
        read
      }
    }
  }

  /** The rows of a bucket, for whoever passes over all of them: those that were not there are not kept. */
  private def peek(version: BucketedVersion, number: Int): Families = {
    val there = version.buckets(number).rows
    if (there != null) there else source.read(version, version.bits, number)
  }

  private def split(buckets: Array[Bucket], from: Int, to: Int): Array[Bucket] =
    if (from == to) buckets
    else buckets.indices.toArray.flatMap { number =>
      val rows = buckets(number).rows
      if (rows == null) Array.fill(1 << (to - from))(new Bucket(this, null))
      else {
        val parts = byBucket(rows, to)
        Array.tabulate(1 << (to - from))(part => new Bucket(this, parts.getOrDefault((number << (to - from)) + part, new Families)))
      }
    }
}

object BucketedVersions {
  /** Heap of one bucket, about: read in one piece, and small enough that few of them hold the rows of a batch that are near each other. */
  val BucketBytes: Long = 512L * 1024
  private val ScanRowsMin = 1024L
  private val RowBytesMin = 16L

  /** A version as its buckets. */
  private final class BucketedVersion(
      number: Long, attempt: Attempt, schema: String, tree: BucketedVersions, keys: Array[Long], val bits: Int, val buckets: Array[Bucket])
    extends Version(number, attempt, schema, tree, keys)

  /** How many bits name a bucket, so that each has about `bucketBytes`: as many as there are, until they are twice as large. */
  private def bitsFor(stateBytes: Long, now: Int, bucketBytes: Long): Int = {
    var bits = now
    if (stateBytes >> now > 2 * bucketBytes) while (bits < ChangedBuckets.HashBits && stateBytes >> bits > bucketBytes) bits += 1
    bits
  }

  private def byBucket(rows: Families, bits: Int): java.util.HashMap[Integer, Families] = {
    val found = new java.util.HashMap[Integer, Families]
    var family = 0
    while (family < rows.bound) {
      val table = rows.existing(family)
      if (table != null) {
        val all = new SlotIterator(Array(table.share()), showDeletes = true)
        while (all.advance()) {
          found.computeIfAbsent(ChangedBuckets.bucketOf(all.hash, bits), _ => new Families)(family).put(all.hash, all.row)
        }
      }
      family += 1
    }
    found
  }

  /** A copy of a bucket's rows, with changes applied to it. */
  private def changedBy(rows: Families, changes: Families): Families = {
    val made = rows.copy()
    var family = 0
    while (family < changes.bound) {
      val table = changes.existing(family)
      if (table != null) {
        val all = new SlotIterator(Array(table.share()), showDeletes = true)
        while (all.advance()) {
          val root = Row.root(all.row)
          if (Row.isDelete(all.row)) made(family).remove(all.hash, root, Entry.KeyOffset, Entry.keyLength(root))
          else made(family).put(all.hash, all.row)
        }
      }
      family += 1
    }
    made
  }

  private def difference(keys: Array[Long], before: Array[Long], after: Array[Long]): Array[Long] =
    Array.tabulate(math.max(keys.length, after.length)) { family =>
      def at(counts: Array[Long]): Long = if (family < counts.length) counts(family) else 0L
      at(keys) - at(before) + at(after)
    }

  private def isWithin(row: AnyRef, from: Array[Byte], inclusive: Boolean, to: Array[Byte]): Boolean = {
    val order = if (from == null) 1 else Row.byKey.compare(row, from)
    (order > 0 || order == 0 && inclusive) && (to == null || Row.byKey.compare(row, to) < 0)
  }
}

/** The rows whose hashes lie in one range, of all families; they are there, or null. Whoever has taken them may go on with them. */
private[core] final class Bucket(val owner: AnyRef, @volatile var rows: Families) {
  /** Since it was last in question. */
  @volatile var isUsed = false
  /** What it counts for in the cache. */
  var countedBytes = 0L

  def bytesThere: Long = {
    val there = rows
    if (there == null) 0L else there.heapBytes
  }
}

/**
 * Holds the bytes of all buckets in memory to a limit: of those that were not used since they were last in question, the oldest give
 * way (the CLOCK algorithm, F. J. Corbató, 1968), but first those that a newer version has replaced. Safe for threads.
 */
final class BucketCache(val limit: Long) {
  private[this] var total = 0L
  private[this] val counted = new LinkedHashSet[Bucket]
  private[this] val replaced = new LinkedHashSet[Bucket]

  /** Bytes of heap of all buckets that may give way. */
  def bytes: Long = synchronized(total)

  /** Rows have come into a bucket. */
  private[core] def add(bucket: Bucket, rows: Families): Unit = synchronized {
    bucket.rows = rows
    count(bucket)
    makeRoom()
  }

  /** Buckets of a version that was committed are in the place of those of the one before it. */
  private[core] def replace(before: Iterable[Bucket], after: Iterable[Bucket]): Unit = synchronized {
    before.foreach(bucket => if (counted.contains(bucket)) replaced.add(bucket))
    after.foreach(bucket => if (bucket.rows != null) count(bucket))
    makeRoom()
  }

  /** Nobody will ask for an owner's buckets any more. */
  private[core] def drop(owner: AnyRef): Unit = synchronized {
    counted.stream.filter(_.owner eq owner).toList.forEach(release(_))
  }

  private def count(bucket: Bucket): Unit = if (counted.add(bucket)) {
    bucket.countedBytes = bucket.bytesThere
    total += bucket.countedBytes
  }

  private def makeRoom(): Unit = {
    while (total > limit && !replaced.isEmpty) release(replaced.iterator.next())
    var chances = counted.size
    while (total > limit && !counted.isEmpty) {
      val oldest = counted.iterator.next()
      if (oldest.isUsed && chances > 0) {
        oldest.isUsed = false
        counted.remove(oldest)
        counted.add(oldest)
      } else release(oldest)
      chances -= 1
    }
  }

  private def release(bucket: Bucket): Unit = {
    counted.remove(bucket)
    replaced.remove(bucket)
    total -= bucket.countedBytes
    bucket.rows = null
  }
}

object BucketCache {
  private val caches = new ConcurrentHashMap[Long, BucketCache]

  /** The one cache of this process with a limit: all stores of an executor share it. */
  def of(limitBytes: Long): BucketCache = caches.computeIfAbsent(limitBytes, new BucketCache(_))
}
