package io.dynastate.core

import java.nio.ByteBuffer

/**
 * Collects the runs of changes that lead from one version to another, as the engine brings them, oldest first.
 *
 * {{{ [startFrom] add* [markFromHere add*] (asWhole | asChanges) }}}
 */
final class Runs {
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
      val entry = changes.entry
      val table = rows(changes.family)
      val hash = Entry.hash(entry)
      if (isMarking) ChangedBuckets.mark(marked, hash)
      table.put(hash, if (changes.isMerge) appended(table, changes.family, hash, entry) else entry)
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
    private[this] var current: Array[Byte] = _

    def isMerge: Boolean = tag >>> 12 == 1

    def family: Int = tag & 0xFFF

    def entry: Array[Byte] = current

    def advance(): Boolean = run.hasRemaining && {
      tag = run.getShort & 0xFFFF
      val keyLength = run.getInt(run.position())
      val valueLength = run.getInt(run.position() + 4)
      if (tag >>> 12 > 1 || keyLength < 0 || valueLength < Entry.DeleteMarker) {
        throw new DynastateException(ErrorKind.Corrupt, s"a change of an unknown kind tag=$tag keyLength=$keyLength valueLength=$valueLength")
      }
      current = new Array[Byte](Math.addExact(Math.addExact(Entry.HeaderBytes, keyLength), math.max(valueLength, 0)))
      run.get(current)
      true
    }
  }
}
