package io.dynastate.memory

/** One version of a store in memory, and its keys by column family. Neither it nor its rows ever change. */
abstract class Version private[memory] (
    val number: Long, val attempt: Attempt, val schema: String, val versions: Versions, val keys: Array[Long]) {
  override def toString: String = s"$number/$attempt"
}

/**
 * Rows of one store at several versions. All rows are in memory (`VersionTree`), or as many as there is room for (`BucketedVersions`).
 * Safe for threads.
 */
trait Versions {
  /** What changed in each version. */
  def changed: ChangedBuckets

  /** The row of a key at a version, or null. Never a delete marker. */
  def get(version: Version, family: Int, hash: Int, base: AnyRef, offset: Long, length: Int): AnyRef

  /** Bits of a bucket's number: a version has 2^bits buckets, by the first bits of the hashes. */
  def bucketBits(version: Version): Int

  /** The layers of a family's rows in a bucket, topmost first; the caller must release them. */
  def share(version: Version, family: Int, bucket: Int): List[Slots]

  /** The same for every family of a version, by its id. */
  def share(version: Version, bucket: Int): Array[List[Slots]]

  /** The best number of rows to read at once in a scan. */
  def scanBatch(isFirst: Boolean): Int

  /**
   * Rows of a family at a version in the order of their keys, from a key (or its beginning: null) up to another, exclusive
   * (or its end: null): at most `limit`. A version never changes, so a scan continues after the last row it has read.
   */
  def scan(version: Version, family: Int, from: Array[Byte], inclusive: Boolean, to: Array[Byte], limit: Int): java.util.ArrayList[AnyRef]

  /**
   * Make the version of a base and changes, and count its keys. The changes belong to the versions from then on. If the commit fails, the
   * new version is garbage, and the base is as readable as before.
   */
  def fold(base: Version, changes: RowTables, number: Long, attempt: Attempt, schema: String): Version

  /** Report that a version folded from another is durable. */
  def committed(base: Version, next: Version): Unit = ()

  /** Bytes of heap of a version's rows. */
  def heapBytes(version: Version): Long

  /** Bytes of heap that a version takes beside the newest one: its undo records. */
  def undoBytes(version: Version): Long = 0L

  /** Whether the rows can be read: not after an error that left them half changed. */
  def isUsable: Boolean = true

  /** Approximate bytes of a version's rows if all of them were in memory. */
  def stateBytes(version: Version): Long

  /** Release the memory of all versions. */
  def close(): Unit = ()
}
