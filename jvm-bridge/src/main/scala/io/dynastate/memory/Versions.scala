package io.dynastate.memory

/** One version of a store in memory, and its keys by column family. Neither it nor its rows ever change.
 *
 * @param added how many values it has more than the version that it was made of: a row has one, a list all of its
 *              values
 */
abstract class Version private[memory] (val number: Long, val attempt: Attempt, val schema: String,
    val versions: Versions, val keys: Array[Long], val added: Long = 0L) {
  override def toString: String = s"$number/$attempt"
}

/** What rows take of local disk.
 *
 * @param reads   of a row, of rows near each other, or of a page by an iterator, from the beginning
 * @param spilled pages that were moved there, from the beginning
 */
final case class DiskUse(bytes: Long, reads: Long, spilled: Long) {
  /** What came after an earlier use. */
  def since(other: DiskUse): DiskUse =
    DiskUse(bytes, math.max(0, reads - other.reads), math.max(0, spilled - other.spilled))
}

object DiskUse {
  val None: DiskUse = DiskUse(0L, 0L, 0L)
}

/** Rows of one store at several versions. All rows are in memory (`VersionTree`), or as many as there is room for
 * (`BucketedVersions`). Safe for threads.
 */
trait Versions {
  /** What changed in each version. */
  def changed: ChangedBuckets

  /** Point a cursor to the row of a key at a version; false: there is none. Never a delete marker. */
  def get(version: Version, family: Int, hash: Int, base: AnyRef, offset: Long, length: Int, into: Row): Boolean

  /** Whether there is a row of a key at a version; without reading it from disk, it may be wrongly true. */
  def mayHave(version: Version, family: Int, hash: Int, base: AnyRef, offset: Long, length: Int): Boolean =
    get(version, family, hash, base, offset, length, new Row)

  /** Bits of a bucket's number: a version has 2^bits buckets, by the first bits of the hashes. */
  def bucketBits(version: Version): Int

  /** The layers of a family's rows in a bucket, topmost first; the caller must release them. */
  def share(version: Version, family: Int, bucket: Int): List[Slots]

  /** The same for every family of a version, by its id. */
  def share(version: Version, bucket: Int): Array[List[Slots]]

  /** The best number of rows to read at once in a scan that wants a number of them. */
  def scanBatch(wanted: Int): Int

  /** Rows of a family at a version in the order of their keys, from a key (or its beginning: null) up to another,
   * exclusive (or its end: null): at most `limit`. A version never changes, so a scan continues after the last row it
   * has read.
   */
  def scan(version: Version, family: Int, from: Row, inclusive: Boolean, to: Row, limit: Int): RowBatch

  /** Make the version of a base and changes, and count its keys and the values that it adds. The changes belong to the
   * versions from then on. If the commit fails, the new version is garbage, and the base is as readable as before.
   */
  def fold(base: Version, changes: RowTables, number: Long, attempt: Attempt, schema: String): Version

  /** Report that a version that was folded here is durable. */
  def committed(next: Version): Unit = ()

  /** The same version, whose rows are read from where they are durable if they cannot be read here. */
  def durable(version: Version): Version = version

  /** Bytes of heap of a version's rows. */
  def heapBytes(version: Version): Long

  /** Bytes of heap that a version takes beside the newest one: its undo records. */
  def undoBytes(version: Version): Long = 0L

  /** Count bytes that versions in memory take beside the newest one, in place of those counted before. */
  def countUndo(bytes: Long): Unit = ()

  /** The use of local disk so far. */
  def disk: DiskUse = DiskUse.None

  /** Whether the rows can be read: not after an error that left them half changed, or of the disk that they are on. */
  def isUsable: Boolean = true

  /** Whether an error has left the rows half changed. */
  def isHalfChanged: Boolean = false

  /** Approximate bytes of a version's rows if all of them were in memory. */
  def stateBytes(version: Version): Long

  /** Release the memory of all versions. */
  def close(): Unit = ()
}
