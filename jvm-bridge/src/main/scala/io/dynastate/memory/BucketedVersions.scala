package io.dynastate.memory

import io.dynastate.CollectionConverters._

/** Reads rows of a version from where they are durable. */
trait BucketSource {
  /** The rows that lie in some of 2^bits buckets. */
  def read(version: Version, bits: Int, buckets: Seq[Int]): RowTables

  /** Release what is held in memory. */
  def close(): Unit = ()
}

/** Versions of a store of which only some rows are in memory: whole buckets, as many as the cache has room for. Another
 * bucket is read when one of its rows is needed.
 *
 * A version is an array of buckets, and shares the unchanged ones with its parent. Rows of a bucket never change, so it
 * can be evicted at any time, except buckets of a version that is not committed yet: they are not durable.
 *
 * A commit copies the slots of every bucket that it changes: this is for state that is larger than the memory it may
 * use, and `VersionTree` for all other.
 */
final class BucketedVersions(cache: BucketCache, source: BucketSource, startsAt: Long,
    bucketBytes: Long = BucketedVersions.BucketBytes)
  extends Versions {
  import BucketedVersions._

  override val changed = new ChangedBuckets(startsAt)
  /** Mean bytes of heap of the rows of the last commit; before the first, estimated from the number of buckets. */
  @volatile private[this] var rowBytes = 100L
  @volatile private[this] var sawRows = false

  /** A version without rows. */
  def empty(schema: String, number: Long = 0L): Version =
    new BucketedVersion(number, Attempt.None, schema, this, Array.empty, 0, Array(new Bucket(this, new RowTables)))

  /** A durable version of which nothing is in memory. */
  def absent(number: Long, attempt: Attempt, schema: String, keys: Array[Long], bits: Int): Version = {
    if (!sawRows && bits > 0 && keys.sum > 0) rowBytes = math.max(RowBytesMin, (bucketBytes << bits) / keys.sum)
    new BucketedVersion(number, attempt, schema, this, keys, bits, Array.fill(1 << bits)(new Bucket(this, null)))
  }

  override def get(version: Version, family: Int, hash: Int, base: AnyRef, offset: Long, length: Int,
      into: Row): Boolean = {
    val of = version.asInstanceOf[BucketedVersion]
    val table = load(of, ChangedBuckets.bucketOf(hash, of.bits)).existing(family)
    table != null && table.get(hash, base, offset, length, into)
  }

  /** Whether the bucket of a hash is in memory. */
  def isInMemory(version: Version, hash: Int): Boolean = {
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

  /** As many rows as fit beside the buckets: each further batch reads the whole state again. */
  override def scanBatch(wanted: Int): Int =
    math.max(ScanRowsMin, cache.limit / 16 / rowBytes).min(Int.MaxValue.toLong).toInt

  /** Read all buckets, and keep copies of the first `limit` rows: the rows would keep the pages of all buckets. */
  override def scan(version: Version, family: Int, from: Row, inclusive: Boolean, to: Row, limit: Int): RowBatch = {
    val first = new java.util.PriorityQueue[Row]((one: Row, other: Row) => other.compareKeys(one))
    val of = version.asInstanceOf[BucketedVersion]
    peekAll(of, of.buckets.indices) { (_, rows, _) =>
      val table = rows.existing(family)
      if (table != null) {
        val slots = new SlotIterator(Array(table.share()), showAll = false)
        try while (slots.advance()) {
            if (isWithin(slots.row, from, inclusive, to) &&
              (first.size < limit || slots.row.compareKeys(first.peek) < 0)) {
              if (first.size == limit) first.poll()
              first.add(slots.row.copy)
            }
          }
        finally slots.close()
      }
    }
    val inOrder = new java.util.ArrayList[Row](first)
    inOrder.sort((one, other) => one.compareKeys(other))
    val rows = new RowBatch
    inOrder.forEach(rows.add(_))
    rows
  }

  /** Changed buckets that are not in memory are read to count their keys, some at a time, and not kept. */
  override def fold(base: Version, changes: RowTables, number: Long, attempt: Attempt, schema: String): Version = {
    require(base.versions eq this, "a version of other buckets")
    changed.add(number, ChangedBuckets.of(changes))
    val parent = base.asInstanceOf[BucketedVersion]
    val buckets = parent.buckets.clone()
    var keys = java.util.Arrays.copyOf(parent.keys, math.max(parent.keys.length, changes.bound))
    var rows, bytes, addedValues = 0L
    val changedRows = byBucket(changes, parent.bits)
    peekAll(parent, changedRows.keySet.asScala.toSeq.map(_.intValue).sorted) { (number, old, isInMemory) =>
      val (bucket, more) = changedBy(old, changedRows.get(number))
      addedValues += more
      keys = difference(keys, old.counts, bucket.counts)
      rows += bucket.rows
      bytes += bucket.heapBytes
      buckets(number) = new Bucket(this, if (isInMemory) bucket else null)
    }
    if (rows > 0) {
      rowBytes = math.max(RowBytesMin, bytes / rows)
      sawRows = true
    }
    val bits = bitsFor(keys.sum * rowBytes, parent.bits, bucketBytes)
    val next =
      new BucketedVersion(number, attempt, schema, this, keys, bits, split(buckets, parent.bits, bits), addedValues)
    next.base = parent
    next
  }

  /** Replaced buckets are now the first to evict, and new ones can be evicted. */
  override def committed(next: Version): Unit = {
    val version = next.asInstanceOf[BucketedVersion]
    val oldBuckets = version.base.buckets
    val newBuckets = version.buckets
    version.base = null
    if (oldBuckets.length != newBuckets.length) cache.replace(oldBuckets, newBuckets)
    else {
      val numbers = oldBuckets.indices.filter(bucket => oldBuckets(bucket) ne newBuckets(bucket))
      cache.replace(numbers.map(oldBuckets(_)), numbers.map(newBuckets(_)))
    }
  }

  override def heapBytes(version: Version): Long =
    version.asInstanceOf[BucketedVersion].buckets.iterator.map(_.bytesThere).sum

  override def stateBytes(version: Version): Long = math.max(heapBytes(version), version.keys.sum * rowBytes)

  override def close(): Unit = {
    cache.discard(this)
    source.close()
  }

  /** The rows of a bucket, which are in memory from now on. */
  private def load(version: BucketedVersion, number: Int): RowTables = {
    val bucket = version.buckets(number)
    val tables = bucket.rows
    if (tables != null) {
      bucket.isUsed = true
      tables
    } else bucket.synchronized {
      // Another thread may have read them.
      val tables = bucket.rows
      if (tables != null) tables
      else {
        val read = source.read(version, version.bits, Seq(number))
        bucket.isUsed = true
        cache.add(bucket, read)
        read
      }
    }
  }

  /** The rows of a bucket, not kept if they were not in memory: for scans of all buckets. */
  private def peek(version: BucketedVersion, number: Int): RowTables = {
    val tables = version.buckets(number).rows
    if (tables != null) tables else source.read(version, version.bits, Seq(number))
  }

  /** Use the rows of buckets, each with whether it is in memory: first those that are, then the others, of which
   * several are read in one request, and which are not kept.
   */
  private def peekAll(version: BucketedVersion, numbers: Seq[Int])(use: (Int, RowTables, Boolean) => Unit): Unit = {
    val absent = numbers.filter { number =>
      val tables = version.buckets(number).rows
      if (tables != null) use(number, tables, true)
      tables == null
    }
    absent.grouped(math.max(1L, math.min(ReadAtOnceMax, cache.limit / 16 / bucketBytes)).toInt).foreach { some =>
      val read = byBucket(source.read(version, version.bits, some), version.bits)
      some.foreach(number => use(number, read.getOrDefault(number, new RowTables), false))
    }
  }

  private def split(buckets: Array[Bucket], from: Int, to: Int): Array[Bucket] =
    if (from == to) buckets
    else buckets.indices.toArray.flatMap { number =>
      val rows = buckets(number).rows
      if (rows == null) Array.fill(1 << (to - from))(new Bucket(this, null))
      else {
        val parts = byBucket(rows, to)
        Array.tabulate(1 << (to - from))(part =>
          new Bucket(this, parts.getOrDefault((number << (to - from)) + part, new RowTables)))
      }
    }
}

object BucketedVersions {
  /** Approximate heap of one bucket: read in one request, and small enough that few hold the rows of a batch that are
   * near each other.
   */
  val BucketBytes: Long = 512L * 1024
  /** Buckets that are read in one request, where many are needed, one after the other: 16 MB of rows. */
  private val ReadAtOnceMax = 32L
  private val ScanRowsMin = 1024L
  private val RowBytesMin = 16L

  /** A version as its buckets. */
  private final class BucketedVersion(number: Long, attempt: Attempt, schema: String, tree: BucketedVersions,
      keys: Array[Long], val bits: Int, val buckets: Array[Bucket], added: Long = 0L)
    extends Version(number, attempt, schema, tree, keys, added) {
    /** The version that it was made of, until it is committed. */
    var base: BucketedVersion = _
  }

  /** Bits of a bucket's number for buckets of about `bucketBytes`; unchanged until buckets are twice as large. */
  private def bitsFor(stateBytes: Long, current: Int, bucketBytes: Long): Int = {
    var bits = current
    if (stateBytes >> current > 2 * bucketBytes) while (bits < ChangedBuckets.HashBits &&
      stateBytes >> bits > bucketBytes) bits += 1
    bits
  }

  private def byBucket(rows: RowTables, bits: Int): java.util.HashMap[Integer, RowTables] = {
    val tables = new java.util.HashMap[Integer, RowTables]
    rows.foreach { (family, table) =>
      val all = new SlotIterator(Array(table.share()), showAll = true)
      while (all.advance()) {
        tables.computeIfAbsent(ChangedBuckets.bucketOf(all.hash, bits), _ => new RowTables)(family).put(all.hash,
          all.row)
      }
    }
    tables
  }

  /** A copy of a bucket's rows with changes applied, and the values that these add. Lists are without segments, as
   * those that are read: a bucket may be read again at any time.
   */
  private def changedBy(rows: RowTables, changes: RowTables): (RowTables, Long) = {
    val copy = rows.copy()
    val previous = new Row
    var values = 0L
    changes.foreach { (family, table) =>
      val oldTable = rows.existing(family)
      val all = new SlotIterator(Array(table.share()), showAll = true)
      while (all.advance()) {
        val row = all.row
        if (!row.isSegment) {
          val hadRow =
            oldTable != null && oldTable.get(all.hash, row.bytes, row.keyOffset, row.keyLengthAndKind, previous)
          values += (if (row.isDelete) 0 else row.valueCount) - (if (hadRow) previous.valueCount else 0)
        }
        if (row.isDelete) copy(family).remove(all.hash, row.bytes, row.keyOffset, row.keyLengthAndKind, previous)
        else if (row.segmentCount > 0) {
          row.findSegments(all.hash, table.get,
            (hash, base, offset, length, into) => {
              oldTable != null && oldTable.get(hash, base, offset, length, into)
            })
          copy(family).putWhole(all.hash, row)
        } else if (!row.isSegment) copy(family).put(all.hash, row)
      }
    }
    (copy, values)
  }

  private def difference(keys: Array[Long], oldCounts: Array[Long], newCounts: Array[Long]): Array[Long] =
    Array.tabulate(math.max(keys.length, newCounts.length)) { family =>
      def at(counts: Array[Long]): Long = if (family < counts.length) counts(family) else 0L
      at(keys) - at(oldCounts) + at(newCounts)
    }

  private def isWithin(row: Row, from: Row, inclusive: Boolean, to: Row): Boolean = {
    val order = if (from == null) 1 else row.compareKeys(from)
    (order > 0 || order == 0 && inclusive) && (to == null || row.compareKeys(to) < 0)
  }
}
