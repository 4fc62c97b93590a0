package io.dynastate.core

import java.nio.ByteBuffer

import org.apache.spark.unsafe.Platform

/**
 * Collects the runs of changes that lead from one version to another, as the engine brings them, oldest first.
 *
 * Where only rows of some hashes are wanted, the others are passed over.
 *
 * {{{ [startFrom] add* [markFromHere add*] (asWhole | asChanges) }}}
 */
final class Runs(isWanted: Int => Boolean = null) {
  private[this] val rows = new Families
  private[this] var base: Option[Version] = None
  private[this] var isMarking = false

  /** The hashes of the changes since `markFromHere`. */
  val marked: Array[Long] = new Array[Long](ChangedBuckets.Words)

  /** The version that the changes stand on, if it is not version 0. Merges go on from its lists. */
  def startFrom(version: Version): Unit = base = Some(version)

  /** What came so far is a snapshot; what comes now are changes since, whose hashes are marked. */
  def markFromHere(): Unit = isMarking = true

  /** Add a run (docs/storage-format.md, "Changes"). */
  def add(records: Int, run: ByteBuffer): Unit = {
    val changes = new Runs.Changes(run)
    var added = 0
    while (changes.advance()) {
      val hash = changes.hash
      if (isMarking) ChangedBuckets.mark(marked, hash)
      if (isWanted == null || isWanted(hash)) {
        val entry = changes.entry
        val table = rows(changes.family)
        table.put(hash, if (changes.isMerge) appended(table, changes.family, hash, entry) else entry)
      }
      added += 1
    }
    if (added != records) throw new DynastateException(ErrorKind.Corrupt, s"a run holds another number of records than it should: $added, not $records")
  }

  /** The changes as they are, with their delete markers. */
  def asChanges: Families = rows

  /** What the changes make of nothing: rows without delete markers. */
  def asWhole(): Families = {
    var family = 0
    while (family < rows.bound) {
      val table = rows.existing(family)
      if (table != null) {
        val all = new SlotIterator(Array(table.share()), showDeletes = true)
        while (all.advance()) {
          if (Row.isDelete(all.row)) {
            val entry = Row.root(all.row)
            table.remove(all.hash, entry, Entry.KeyOffset, Entry.keyLength(entry))
          }
        }
      }
      family += 1
    }
    rows
  }

  private def appended(table: RowTable, family: Int, hash: Int, entry: Array[Byte]): AnyRef = {
    val keyLength = Entry.keyLength(entry)
    var before = table.find(hash, entry, Entry.KeyOffset, keyLength)
    if (before == null) before = base.map(version => version.tree.find(version, family, hash, entry, Entry.KeyOffset, keyLength)).orNull
    if (before == null || Row.isDelete(before)) entry
    else new ValueList(before, java.util.Arrays.copyOfRange(entry, Entry.HeaderBytes + keyLength, entry.length))
  }
}

object Runs {
  /** The records of a run, one after the other. The buffer is little-endian. */
  final class Changes(run: ByteBuffer) {
    private[this] var tag = 0
    private[this] var at, keyLength, length = 0

    def isMerge: Boolean = tag >>> 12 == 1

    def family: Int = tag & 0xFFF

    /** Hash of the key. */
    def hash: Int = Entry.hash(run.array, Platform.BYTE_ARRAY_OFFSET + run.arrayOffset + at + Entry.HeaderBytes, keyLength)

    /** A copy of the entry. */
    def entry: Array[Byte] = {
      val copy = new Array[Byte](length)
      System.arraycopy(run.array, run.arrayOffset + at, copy, 0, length)
      copy
    }

    def advance(): Boolean = run.hasRemaining && {
      if (run.remaining < Entry.TagBytes + Entry.HeaderBytes) {
        throw new DynastateException(ErrorKind.Corrupt, s"a run ends within the head of a change left=${run.remaining}")
      }
      tag = run.getShort & 0xFFFF
      at = run.position()
      keyLength = run.getInt(at)
      val valueLength = run.getInt(at + 4)
      if (tag >>> 12 > 1 || keyLength < 0 || valueLength < Entry.DeleteMarker) {
        throw new DynastateException(ErrorKind.Corrupt, s"a change of an unknown kind tag=$tag keyLength=$keyLength valueLength=$valueLength")
      }
      val whole = Entry.HeaderBytes + keyLength.toLong + math.max(valueLength, 0)
      if (whole > run.remaining) throw new DynastateException(ErrorKind.Corrupt, s"a change goes on behind its run length=$whole left=${run.remaining}")
      length = whole.toInt
      run.position(at + length)
      true
    }
  }
}
