package io.dynastate.memory

import java.util.concurrent.ConcurrentHashMap
import java.util.concurrent.locks.StampedLock

/** One version in a tree. Either it is the head, whose rows are in the tree's tables; or it has a link to a version
 * nearer to the head, and undo records: for every key in which the two differ, this version's row, or a delete marker.
 *
 * Links point towards the head only, so a version without other references is garbage, with its undo records.
 */
private[memory] final class TreeVersion(number: Long, attempt: Attempt, schema: String, tree: VersionTree,
    keys: Array[Long], added: Long = 0L)
  extends Version(number, attempt, schema, tree, keys, added) {
  var next: TreeVersion = _
  var undo: RowTables = _
}

/** Rows of one store at several versions. One, the head, is in hash maps; the others differ from it by undo records.
 * (Baker's trick for persistent arrays: H. G. Baker, "Shallow binding makes functional arrays fast", 1991.)
 *
 * Life cycle: made from rows that the engine sends (`load`), then every commit folds an attempt's changes into the
 * head. Opening any version is O(1), a commit is O(changes), and every version that is referenced stays readable, so
 * that a retry, a zombie, a reader and a writer work at the same time. A commit whose base is not the head first moves
 * the head to its base, which costs the changes between the two.
 *
 * `changed` has what changed in each version. It belongs to the tree, not the provider: a version that was loaded with
 * all its rows begins its own tree, and the changes of another tree's versions are unknown in it.
 *
 * An error within a fold, such as a lack of memory, leaves the head half changed. Nothing of the tree can be read from
 * then on. What cannot be read, here or from local disk, is read from where it is durable, with `fallback`; versions
 * that are made then do not belong to the tree.
 *
 * Safe for threads: a fold, and the begin of an iterator or scan, has a lock. Reads of single rows take none, unless
 * one of these came between.
 */
final class VersionTree private (private[this] val tables: RowTables, val changed: ChangedBuckets,
    fallback: Version => Version)
  extends Versions {
  private var head: TreeVersion = _
  /** The error that left the head half changed. */
  @volatile private[this] var failure: Throwable = _
  private[this] val lock = new StampedLock
  private[this] val previous, changedRow = new Row
  private[this] var countedUndo = 0L
  /** Values that the changes applied last have added. */
  private[this] var addedValues = 0L
  /** Versions that could not be read here, as they are durable. */
  private[this] val fallbacks = new ConcurrentHashMap[Version, Version]

  override def get(version: Version, family: Int, hash: Int, base: AnyRef, offset: Long, length: Int,
      into: Row): Boolean = {
    // No lock is needed while no other thread folds.
    val stamp = lock.tryOptimisticRead()
    val hasRow = stamp != 0 && {
      try find(version, family, hash, base, offset, length, into)
      catch {
        case e: RowsUnreadable if lock.validate(stamp) =>
          return durableGet(version, family, hash, base, offset, length, into, e)
        // Versions may have been linked the other way meanwhile, and a page on disk given to other rows.
        case e: RuntimeException => if (lock.validate(stamp)) throw e else false
      }
    }
    if (stamp != 0 && lock.validate(stamp)) hasRow
    else
      try reading(find(version, family, hash, base, offset, length, into))
      catch { case e: RowsUnreadable => durableGet(version, family, hash, base, offset, length, into, e) }
  }

  /** What is durable has no segments. */
  private def durableGet(version: Version, family: Int, hash: Int, base: AnyRef, offset: Long, length: Int, into: Row,
      error: RowsUnreadable): Boolean = {
    if (fallback == null) throw error
    (length & EncodedRow.SegmentBit) == 0 && {
      val durable = this.durable(version)
      durable.versions.get(durable, family, hash, base, offset, length, into)
    }
  }

  override def durable(version: Version): Version =
    if (fallback == null) version else fallbacks.computeIfAbsent(version, fallback(_))

  private def find(version: Version, family: Int, hash: Int, base: AnyRef, offset: Long, length: Int,
      into: Row): Boolean = {
    requireUsable()
    var at = version.asInstanceOf[TreeVersion]
    while (at.next != null) {
      val undo = at.undo
      val table = if (undo == null) null else undo.existing(family)
      if (table != null && table.get(hash, base, offset, length, into)) return !into.isDelete
      at = at.next
    }
    val table = tables.existing(family)
    table != null && table.get(hash, base, offset, length, into)
  }

  override def mayHave(version: Version, family: Int, hash: Int, base: AnyRef, offset: Long, length: Int): Boolean =
    try reading(mayFind(version, family, hash, base, offset, length))
    catch { case e: RowsUnreadable => durableGet(version, family, hash, base, offset, length, new Row, e) }

  private def mayFind(version: Version, family: Int, hash: Int, base: AnyRef, offset: Long, length: Int): Boolean = {
    requireUsable()
    val row = new Row
    var at = version.asInstanceOf[TreeVersion]
    while (at.next != null) {
      val undo = at.undo
      val table = if (undo == null) null else undo.existing(family)
      if (table != null && table.get(hash, base, offset, length, row)) return !row.isDelete
      at = at.next
    }
    val table = tables.existing(family)
    table != null && table.hasHash(hash)
  }

  override def bucketBits(version: Version): Int = 0

  override def share(version: Version, family: Int, bucket: Int): List[Slots] = writing {
    requireUsable()
    var layers = List.empty[Slots]
    var at = version.asInstanceOf[TreeVersion]
    while (at.next != null) {
      val table = at.undo.existing(family)
      if (table != null && !table.isEmpty) layers ::= table.share()
      at = at.next
    }
    val table = tables.existing(family)
    if (table != null && !table.isEmpty) layers ::= table.share()
    layers.reverse
  }

  override def share(version: Version, bucket: Int): Array[List[Slots]] =
    version.keys.indices.toArray.map(share(version, _, bucket))

  override def scanBatch(wanted: Int): Int = {
    val durable = fallbacks.values.iterator
    if (durable.hasNext) durable.next().versions.scanBatch(wanted) else math.min(wanted, ScanIterator.BatchMax)
  }

  override def scan(version: Version, family: Int, from: Row, inclusive: Boolean, to: Row, limit: Int): RowBatch =
    orDurable(version)(scanHere(version, family, from, inclusive, to, limit))(each =>
      each.versions.scan(each, family, from, inclusive, to, limit))

  private def scanHere(version: Version, family: Int, from: Row, inclusive: Boolean, to: Row, limit: Int): RowBatch =
    writing {
      requireUsable()
      val layers = new MergedLayers(from, inclusive, to, limit)
      var at = version.asInstanceOf[TreeVersion]
      while (at.next != null) {
        layers.add(at.undo.existing(family))
        at = at.next
      }
      layers.add(tables.existing(family))
      val rows = new RowBatch
      while (rows.size < limit && layers.advance()) if (!layers.row.isDelete) {
        val row = layers.row
        if (row.segmentCount > 0)
          row.findSegments(EncodedRow.hash(row.bytes, row.at), find(version, family, _, _, _, _, _), Slots.Nothing)
        rows.add(row)
      }
      rows
    }

  override def fold(base: Version, changes: RowTables, number: Long, attempt: Attempt, schema: String): Version =
    orDurable(base)(foldHere(base, changes, number, attempt, schema)) { each =>
      // From now on the new version has them.
      fallbacks.remove(base)
      each.versions.fold(each, changes, number, attempt, schema)
    }

  private def foldHere(base: Version, changes: RowTables, number: Long, attempt: Attempt, schema: String): Version =
    writing {
      requireUsable()
      require(base.versions eq this, "a version of another tree")
      val parent = base.asInstanceOf[TreeVersion]
      // Before the version is visible.
      changed.add(number, ChangedBuckets.of(changes))
      try {
        moveHeadTo(parent)
        val undo = apply(changes)
        val version = new TreeVersion(number, attempt, schema, this, tables.counts, addedValues)
        parent.next = version
        parent.undo = undo
        head = version
        Evacuator.submit(this)
        version
      } catch {
        case e: Throwable =>
          failure = e
          throw e
      }
    }

  /** Evacuate pages of the head's rows. Returns whether more may be due. */
  private[memory] def evacuate(): Boolean = writing {
    try failure == null && tables.evacuate(Evacuator.GarbageShare)
    catch {
      // A page is read before anything changes.
      case _: RowsUnreadable => false
      case e: Throwable =>
        failure = e
        throw e
    }
  }

  override def isUsable: Boolean = failure == null && (tables.share == null || tables.share.isUsable)

  override def isHalfChanged: Boolean = failure != null && !failure.isInstanceOf[RowsUnreadable]

  override def disk: DiskUse = if (tables.share == null) DiskUse.None else tables.share.disk

  /** Of the head, for any version: they share nearly all rows. */
  override def heapBytes(version: Version): Long = reading(tables.heapBytes)

  override def undoBytes(version: Version): Long = reading {
    val undo = version.asInstanceOf[TreeVersion].undo
    if (undo == null) 0L else undo.heapBytes
  }

  /** Counts the order of keys, too, which changes with folds and scans. */
  override def countUndo(bytes: Long): Unit = if (tables.share != null) writing {
    tables.share.addIndex(bytes - countedUndo)
    countedUndo = bytes
    tables.foreach((_, table) => table.countOrder())
  }

  override def stateBytes(version: Version): Long = reading(tables.bytes)

  override def close(): Unit = {
    if (tables.share != null) tables.share.close()
    fallbacks.values.forEach(_.versions.close())
  }

  private def requireUsable(): Unit = if (failure != null) throw new RowsUnreadable("rows in memory were left half " +
      s"changed by an error, and are loaded again by the next task; this one fails: $failure", failure)

  /** Reverse the links between a version and the head. */
  private def moveHeadTo(version: TreeVersion): Unit = {
    var path = List.empty[TreeVersion]
    var at = version
    while (at.next != null) {
      path ::= at
      at = at.next
    }
    // From the version next to the head to the wanted one.
    path.foreach { below =>
      val above = below.next
      val redo = apply(below.undo)
      below.next = null
      below.undo = null
      above.next = below
      above.undo = redo
      head = below
    }
  }

  /** Apply changes to the head's tables. Returns the changes that would undo them. */
  private def apply(changes: RowTables): RowTables = {
    val undo = new RowTables
    addedValues = 0
    changes.foreach { (family, changed) =>
      val oldRows = if (changes.replaced == null) null else changes.replaced.existing(family)
      if (!changed.isEmpty)
        applyTo(tables(family), changed, changes.isKeptInOrder(family), oldRows, undo(family, changed.size))
    }
    undo
  }

  private def applyTo(table: RowTable, source: RowTable, isInOrder: Boolean, oldRows: RowTable,
      undo: RowTable): Unit = {
    val slots = source.share()
    // Neighbours in the order of keys are neighbours in pages then, and on disk.
    val positions = if (isInOrder) KeyOrder.slotsInOrder(slots) else null
    val end = if (isInOrder) positions.length else slots.capacity
    val block, hashes = new Array[Int](RowTable.BlockRows)
    var next = 0
    while (next < end) {
      var rows = 0
      val first = next
      while (rows < block.length && next < end) {
        val slot = if (isInOrder) positions(next) else next
        if (!slots.isFree(slot)) {
          block(rows) = slot
          hashes(rows) = slots.hashAt(slot)
          rows += 1
        }
        next += 1
      }
      if (!isInOrder) slots.touchRows(first, next)
      table.touch(hashes, rows)
      var each = 0
      while (each < rows) {
        slots.read(block(each), changedRow)
        applyTo(table, hashes(each), changedRow, oldRows, undo)
        each += 1
      }
    }
    slots.release()
  }

  private def applyTo(table: RowTable, hash: Int, row: Row, oldRows: RowTable, undo: RowTable): Unit = {
    val keyLength = row.keyLengthAndKind
    val hadRow =
      if (row.isDelete) table.remove(hash, row.bytes, row.keyOffset, keyLength, previous, undo, oldRows)
      else table.put(hash, row, previous, undo, oldRows)
    if (!row.isSegment)
      addedValues += (if (row.isDelete) 0 else row.valueCount) - (if (hadRow) previous.valueCount else 0)
    if (hadRow) undo.put(hash, previous)
    // A segment may have gone with its list.
    else if (!row.isSegment || !undo.get(hash, row.bytes, row.keyOffset, keyLength, previous)) {
      undo.putDelete(hash, row.bytes, row.keyOffset, keyLength, previous)
    }
  }

  private def orDurable[A](version: Version)(use: => A)(instead: Version => A): A =
    try use
    catch { case e: RowsUnreadable => if (fallback == null) throw e else instead(durable(version)) }

  private def reading[A](use: => A): A = {
    val stamp = lock.readLock()
    try use
    finally lock.unlockRead(stamp)
  }

  private def writing[A](use: => A): A = {
    val stamp = lock.writeLock()
    try use
    finally lock.unlockWrite(stamp)
  }
}

object VersionTree {
  /** A version without rows: version 0, or the base of a version that is imported. */
  def empty(schema: String, number: Long = 0L, storage: RowStorage = null,
      fallback: Version => Version = null): Version =
    load(new RowTables(storage), number, Attempt.None, schema, new ChangedBuckets(number), fallback)

  /** A tree whose head is a version that the engine sent. The tables belong to the tree from then on. */
  def load(tables: RowTables, number: Long, attempt: Attempt, schema: String): Version =
    load(tables, number, attempt, schema, new ChangedBuckets(number), null)

  /** The same, with the changes since an earlier version, as far as they are known.
   *
   * @param fallback makes of a version that cannot be read here the same, read from where it is durable; null: there is
   *                 none
   */
  def load(tables: RowTables, number: Long, attempt: Attempt, schema: String, changed: ChangedBuckets,
      fallback: Version => Version = null): Version = {
    val tree = new VersionTree(tables, changed, fallback)
    val version = new TreeVersion(number, attempt, schema, tree, tables.counts)
    tree.writing(tree.head = version)
    version
  }
}
