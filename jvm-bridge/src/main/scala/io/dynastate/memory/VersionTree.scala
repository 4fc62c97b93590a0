package io.dynastate.memory

import io.dynastate.{DynastateException, ErrorKind}

/**
 * One version in a tree. Either it is the head, whose rows are in the tree's tables; or it has a link to a version nearer to the head,
 * and undo records: for every key in which the two differ, this version's row, or a delete marker.
 *
 * Links point towards the head only, so a version without other references is garbage, with its undo records.
 */
private[memory] final class TreeVersion(number: Long, attempt: Attempt, schema: String, tree: VersionTree, keys: Array[Long])
  extends Version(number, attempt, schema, tree, keys) {
  var next: TreeVersion = _
  var undo: RowTables = _
}

/**
 * Rows of one store at several versions. One, the head, is in hash maps; the others differ from it by undo records.
 * (Baker's trick for persistent arrays: H. G. Baker, "Shallow binding makes functional arrays fast", 1991.)
 *
 * Life cycle: made from rows that the engine sends (`load`), then every commit folds an attempt's changes into the head.
 * Opening any version is O(1), a commit is O(changes), and every version that is referenced stays readable, so that a
 * retry, a zombie, a reader and a writer work at the same time. A commit whose base is not the head first moves the head
 * to its base, which costs the changes between the two.
 *
 * `changed` has what changed in each version. It belongs to the tree, not the provider: a version that was loaded with all its rows
 * begins its own tree, and the changes of another tree's versions are unknown in it.
 *
 * An error within a fold, such as a lack of memory, leaves the head half changed. Nothing of the tree can be read from then on.
 *
 * Safe for threads: the tree is its own lock, held for one key, or for one fold.
 */
final class VersionTree private (private[this] val tables: RowTables, val changed: ChangedBuckets) extends Versions {
  private var head: TreeVersion = _
  /** The error that left the head half changed. */
  private[this] var failure: Throwable = _

  override def get(version: Version, family: Int, hash: Int, base: AnyRef, offset: Long, length: Int): AnyRef = synchronized {
    requireUsable()
    var at = version.asInstanceOf[TreeVersion]
    while (at.next != null) {
      val table = at.undo.existing(family)
      if (table != null) {
        val row = table.get(hash, base, offset, length)
        if (row != null) return if (Row.isDelete(row)) null else row
      }
      at = at.next
    }
    val table = tables.existing(family)
    if (table == null) null else table.get(hash, base, offset, length)
  }

  override def bucketBits(version: Version): Int = 0

  override def share(version: Version, family: Int, bucket: Int): List[Slots] = synchronized {
    requireUsable()
    var layers = List.empty[Slots]
    var at = version.asInstanceOf[TreeVersion]
    while (at.next != null) {
      val table = at.undo.existing(family)
      if (table != null && table.size > 0) layers ::= table.share()
      at = at.next
    }
    val table = tables.existing(family)
    if (table != null && table.size > 0) layers ::= table.share()
    layers.reverse
  }

  override def share(version: Version, bucket: Int): Array[List[Slots]] = version.keys.indices.toArray.map(share(version, _, bucket))

  /** Most scans are of one prefix, and short. */
  override def scanBatch(isFirst: Boolean): Int = if (isFirst) 32 else 1024

  override def scan(version: Version, family: Int, from: Array[Byte], inclusive: Boolean, to: Array[Byte], limit: Int): java.util.ArrayList[AnyRef] =
    synchronized {
      requireUsable()
      val layers = new java.util.ArrayList[java.util.Iterator[AnyRef]]
      var at = version.asInstanceOf[TreeVersion]
      while (at.next != null) {
        RangeOf.add(at.undo.existing(family), from, inclusive, to, layers)
        at = at.next
      }
      RangeOf.add(tables.existing(family), from, inclusive, to, layers)
      val merged = new MergedLayers(layers)
      val rows = new java.util.ArrayList[AnyRef]
      while (rows.size < limit && merged.advance()) if (!Row.isDelete(merged.row)) rows.add(merged.row)
      rows
    }

  override def fold(base: Version, changes: RowTables, number: Long, attempt: Attempt, schema: String): Version = synchronized {
    requireUsable()
    require(base.versions eq this, "a version of another tree")
    val before = base.asInstanceOf[TreeVersion]
    // Before the version is visible.
    changed.add(number, ChangedBuckets.of(changes))
    try {
      moveHeadTo(before)
      val undo = apply(changes)
      val version = new TreeVersion(number, attempt, schema, this, tables.counts)
      before.next = version
      before.undo = undo
      head = version
      version
    } catch {
      case e: Throwable =>
        failure = e
        throw e
    }
  }

  override def isUsable: Boolean = synchronized(failure == null)

  /** Of the head, for any version: they share nearly all rows. */
  override def heapBytes(version: Version): Long = synchronized(tables.heapBytes)

  override def undoBytes(version: Version): Long = synchronized {
    val undo = version.asInstanceOf[TreeVersion].undo
    if (undo == null) 0L else undo.heapBytes
  }

  override def stateBytes(version: Version): Long = heapBytes(version)

  private def requireUsable(): Unit = if (failure != null) {
    throw new DynastateException(ErrorKind.Unavailable,
      s"rows in memory were left half changed by an error, and are loaded again by the next task; this one fails: $failure", failure)
  }

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
    changes.foreach((family, changed) => if (changed.size > 0) applyTo(tables(family), changed, undo(family, changed.size)))
    undo
  }

  private def applyTo(table: RowTable, changed: RowTable, undo: RowTable): Unit = {
    val slots = changed.share()
    var slot = 0
    while (slot < slots.capacity) {
      val row = slots.rowAt(slot)
      if (row != null) {
        val hash = slots.hashAt(slot)
        val root = Row.root(row)
        val keyLength = EncodedRow.keyLength(root)
        val previous = if (Row.isDelete(row)) table.remove(hash, root, EncodedRow.KeyOffset, keyLength) else table.put(hash, row)
        undo.put(hash, if (previous != null) previous else EncodedRow.delete(root, EncodedRow.KeyOffset, keyLength))
      }
      slot += 1
    }
    slots.release()
  }
}

object VersionTree {
  /** A version without rows: version 0, or the base of a version that is written without a parent. */
  def empty(schema: String, number: Long = 0L): Version = load(new RowTables, number, Attempt.None, schema)

  /** A tree whose head is a version that the engine sent. The tables belong to the tree from then on. */
  def load(tables: RowTables, number: Long, attempt: Attempt, schema: String): Version =
    load(tables, number, attempt, schema, new ChangedBuckets(number))

  /** The same, with the changes since an earlier version, as far as they are known. */
  def load(tables: RowTables, number: Long, attempt: Attempt, schema: String, changed: ChangedBuckets): Version = {
    val tree = new VersionTree(tables, changed)
    val version = new TreeVersion(number, attempt, schema, tree, tables.counts)
    tree.synchronized(tree.head = version)
    version
  }
}
