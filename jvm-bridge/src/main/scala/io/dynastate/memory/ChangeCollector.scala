package io.dynastate.memory

import java.nio.ByteBuffer

import io.dynastate.{DynastateException, ErrorKind}

/**
 * Collects the changes from one version to another, as the engine sends them, oldest first. With `isWanted`, only those of some hashes.
 *
 * {{{ [startFrom] add* [markFromHere add*] (asRows | asChanges) }}}
 */
final class ChangeCollector(isWanted: Int => Boolean = null) {
  private[this] val rows = new RowTables
  private[this] var base: Option[Version] = None
  private[this] var isMarking = false

  /** The hashes of the changes since `markFromHere`. */
  val marked: Array[Long] = new Array[Long](ChangedBuckets.Words)

  /** Set the base of the changes, if it is not version 0. Merges append to its lists. */
  def startFrom(version: Version): Unit = base = Some(version)

  /** Mark the hashes of changes from now on: those before were a snapshot's. */
  def markFromHere(): Unit = isMarking = true

  /** Add encoded changes (docs/storage-format.md, "Changes"). */
  def add(records: Int, encodedChanges: ByteBuffer): Unit = {
    val changes = new ChangeRecords(encodedChanges)
    var added = 0
    while (changes.advance()) {
      val hash = changes.hash
      if (isMarking) ChangedBuckets.mark(marked, hash)
      if (isWanted == null || isWanted(hash)) {
        val encoded = changes.encodedRow
        val table = rows(changes.family)
        table.put(hash, if (changes.isMerge) appended(table, changes.family, hash, encoded) else encoded)
      }
      added += 1
    }
    if (added != records) throw new DynastateException(ErrorKind.Corrupt, s"changes hold another number of records than announced: $added, not $records")
  }

  /** The changes, with their delete markers. */
  def asChanges: RowTables = rows

  /** The rows that the changes make of an empty store. */
  def asRows(): RowTables = {
    rows.foreach { (_, table) =>
      val all = new SlotIterator(Array(table.share()), showDeletes = true)
      while (all.advance()) {
        if (Row.isDelete(all.row)) {
          val encoded = Row.root(all.row)
          table.remove(all.hash, encoded, EncodedRow.KeyOffset, EncodedRow.keyLength(encoded))
        }
      }
    }
    rows
  }

  private def appended(table: RowTable, family: Int, hash: Int, encoded: Array[Byte]): AnyRef = {
    val keyLength = EncodedRow.keyLength(encoded)
    var before = table.get(hash, encoded, EncodedRow.KeyOffset, keyLength)
    if (before == null) before = base.map(version => version.versions.get(version, family, hash, encoded, EncodedRow.KeyOffset, keyLength)).orNull
    if (before == null || Row.isDelete(before)) encoded
    else new ValueList(before, EncodedRow.value(encoded))
  }
}
