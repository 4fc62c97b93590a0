package io.dynastate.memory

import java.nio.ByteBuffer

import io.dynastate.{DynastateException, ErrorKind}

/** Collects the changes from one version to another, as the engine sends them, oldest first. With `isWanted`, only
 * those of some hashes. With `storage`, rows are there: for the rows of a version, of which about `expected` may come,
 * by family. A `isLoad` has all rows of a version.
 *
 * {{{ add* [markFromHere add*] asRows               the rows that the changes make of an empty store
 *     startFrom add* [markFromHere add*] asChanges  the changes, with their delete markers }}}
 */
final class ChangeCollector(isWanted: Int => Boolean = null, storage: RowStorage = null,
    expected: Array[Long] = Array.empty, isLoad: Boolean = false) {
  private[this] val rows = new RowTables(storage, isLoad)
  private[this] var base: Version = _
  private[this] var isMarking = false
  private[this] val previous = new Row
  private[this] val hashes = new Array[Int](RowTable.BlockRows)
  expected.indices.foreach(family =>
    if (expected(family) > 0) rows(family, math.min(expected(family), Int.MaxValue.toLong).toInt))

  /** The hashes of the changes since `markFromHere`. */
  val marked: Array[Long] = new Array[Long](ChangedBuckets.Words)

  /** Set the base of the changes, if it is not version 0. Merges append to its lists. */
  def startFrom(version: Version): Unit = base = version

  /** Mark the hashes of changes from now on: those before were a snapshot's. */
  def markFromHere(): Unit = isMarking = true

  /** Add encoded changes (docs/storage-format.md, "Changes"). */
  def add(records: Int, encodedChanges: ByteBuffer): Unit = {
    val changes = new ChangeRecords(encodedChanges)
    val lookahead = new ChangeRecords(encodedChanges.duplicate().order(encodedChanges.order))
    var count, block = 0
    do {
      block = readAhead(lookahead)
      var each = 0
      while (each < block) {
        changes.advance()
        add(changes, hashes(each))
        each += 1
      }
      count += block
    } while (block > 0)
    if (count != records) throw new DynastateException(ErrorKind.Corrupt,
      s"changes hold another number of records than announced: $count, not $records")
  }

  /** Take the hashes of the next changes, and bring their slots into the processor's cache. Returns their number. */
  private def readAhead(lookahead: ChangeRecords): Int = {
    var block = 0
    while (block < hashes.length && lookahead.advance()) {
      hashes(block) = lookahead.hash
      block += 1
    }
    // Most chunks are of one family.
    val table = if (block > 0) rows.existing(lookahead.family) else null
    if (table != null) table.touch(hashes, block)
    block
  }

  private def add(changes: ChangeRecords, hash: Int): Unit = {
    if (isMarking) ChangedBuckets.mark(marked, hash)
    if (isWanted == null || isWanted(hash)) {
      val row = changes.row
      if (changes.isMerge) append(changes.family, hash, row)
      else if (base == null && row.isDelete)
        rows(changes.family).remove(hash, row.bytes, row.keyOffset, row.keyLengthAndKind, previous)
      else rows(changes.family).put(hash, row)
    }
  }

  /** The changes, with their delete markers. */
  def asChanges: RowTables = rows

  /** The rows that the changes make of an empty store. */
  def asRows: RowTables = {
    rows.foreach((_, table) => table.endLoad())
    rows
  }

  private def append(family: Int, hash: Int, row: Row): Unit = {
    val hasBefore = base != null &&
      base.versions.get(base, family, hash, row.bytes, row.keyOffset, row.keyLength, previous)
    rows(family).append(hash, row.bytes, row.keyOffset, row.keyLength, row.bytes, EncodedRow.offset(row.valueAt),
      row.valueLength, if (hasBefore) previous else null)
  }
}
