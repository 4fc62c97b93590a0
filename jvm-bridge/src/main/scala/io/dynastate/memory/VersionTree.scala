package io.dynastate.core

/**
 * One version in a tree. It is the head, and then the tree's tables hold its rows; or it has a link
 * to a version nearer to the head, and undo records: for every key in which the two differ, this version's row, or a delete marker.
 *
 * Links point towards the head only, so a version nobody holds any more is garbage, with its undo records.
 */
private[core] final class TreeVersion(number: Long, attempt: Attempt, schema: String, tree: VersionTree, keys: Array[Long])
  extends Version(number, attempt, schema, tree, keys) {
  var next: TreeVersion = _
  var undo: Families = _
}

/**
 * Rows of one store at several versions, of which one, the head, lies in hash maps; the others differ from it by undo records.
 * (Baker's trick for persistent arrays: H. G. Baker, "Shallow binding makes functional arrays fast", 1991.)
 *
 * Life cycle: begun from rows that the engine brings (`load`), then every commit folds an attempt's changes into the head.
 * Opening any version is O(1), a commit is O(changes), and every version that is still held stays readable, so that a
 * retry, a zombie, a reader and a writer work side by side. A commit that does not stand on the head first moves the head
 * to its base, which costs the changes between the two.
 *
 * `changed` knows what changed on the way to each version. It is the tree's, not the provider's: a version that the engine brought
 * whole begins a tree of its own, and knows nothing of the changes that led to versions of another.
 *
 * Safe for threads: the tree is its own lock, held for one key, or for one fold.
 */
final class VersionTree private (private[this] val tables: Families, val changed: ChangedBuckets) extends Versions {
  private var head: TreeVersion = _

  override def find(version: Version, family: Int, hash: Int, base: AnyRef, offset: Long, length: Int): AnyRef = synchronized {
    var at = version.asInstanceOf[TreeVersion]
    while (at.next != null) {
      val table = at.undo.existing(family)
      if (table != null) {
        val row = table.find(hash, base, offset, length)
        if (row != null) return if (Row.isDelete(row)) null else row
      }
      at = at.next
    }
    val table = tables.existing(family)
    if (table == null) null else table.find(hash, base, offset, length)
  }

  override def bucketBits(version: Version): Int = 0

  override def share(version: Version, family: Int, bucket: Int): List[Slots] = synchronized {
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

  override def fold(base: Version, changes: Families, number: Long, attempt: Attempt, schema: String): Version = synchronized {
    require(base.tree eq this, "a version of another tree")
    val before = base.asInstanceOf[TreeVersion]
    // Before anyone can hold the version.
    changed.add(number, ChangedBuckets.of(changes))
    moveHeadTo(before)
    val undo = apply(changes)
    val version = new TreeVersion(number, attempt, schema, this, tables.counts)
    before.next = version
    before.undo = undo
    head = version
    version
  }

  /** Of the head, whichever version is asked for: they share nearly all. */
  override def heapBytes(version: Version): Long = synchronized(tables.heapBytes)

  override def stateBytes(version: Version): Long = heapBytes(version)

  /** Turn round the links between a version and the head. */
  private def moveHeadTo(version: TreeVersion): Unit = {
    var path = List.empty[TreeVersion]
    var at = version
    while (at.next != null) {
      path ::= at
      at = at.next
    }
    // From the version next to the head down to the one wanted.
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

  /** Make changes to the head's tables; what they replace is returned, as changes that would take them back. */
  private def apply(changes: Families): Families = {
    val undo = new Families
    var family = 0
    while (family < changes.bound) {
      val changed = changes.existing(family)
      if (changed != null && changed.size > 0) applyTo(tables(family), changed, undo(family, changed.size))
      family += 1
    }
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
        val keyLength = Entry.keyLength(root)
        val previous = if (Row.isDelete(row)) table.remove(hash, root, Entry.KeyOffset, keyLength) else table.put(hash, row)
        undo.put(hash, if (previous != null) previous else Entry.delete(root, Entry.KeyOffset, keyLength))
      }
      slot += 1
    }
    slots.release()
  }
}

object VersionTree {
  /** No rows, whatever the tables hold: version 0, or what stands for the one below a version that is written whole. */
  def empty(schema: String, number: Long = 0L): Version = load(new Families, number, Attempt.None, schema)

  /** A tree whose head is a version that the engine brought. The tables belong to the tree from then on. */
  def load(tables: Families, number: Long, attempt: Attempt, schema: String): Version =
    load(tables, number, attempt, schema, new ChangedBuckets(number))

  /** The same, where it is known which of the rows came after a version before it. */
  def load(tables: Families, number: Long, attempt: Attempt, schema: String, changed: ChangedBuckets): Version = {
    val tree = new VersionTree(tables, changed)
    val version = new TreeVersion(number, attempt, schema, tree, tables.counts)
    tree.synchronized(tree.head = version)
    version
  }
}

/** A range of a table's rows, in order. */
private[core] object RangeOf {
  def add(table: RowTable, from: Array[Byte], inclusive: Boolean, to: Array[Byte], layers: java.util.List[java.util.Iterator[AnyRef]]): Unit =
    if (table != null && table.size > 0) layers.add(rows(table, from, inclusive, to).iterator)

  def rows(table: RowTable, from: Array[Byte], inclusive: Boolean, to: Array[Byte]): java.util.NavigableSet[AnyRef] = {
    val all = table.inOrder
    if (from == null && to == null) all
    else if (from == null) all.headSet(to, false)
    else if (to == null) all.tailSet(from, inclusive)
    else if (Row.byKey.compare(from, to) >= 0) java.util.Collections.emptyNavigableSet[AnyRef]
    else all.subSet(from, inclusive, to, false)
  }
}

/** Layers in order, merged: of rows with the same key the topmost layer's counts. Delete markers show. */
private[core] final class MergedLayers(layers: java.util.List[java.util.Iterator[AnyRef]]) {
  private[this] val heads: Array[AnyRef] = Array.tabulate(layers.size)(layer => nextOf(layer))
  private[this] var current: AnyRef = _

  def row: AnyRef = current

  def advance(): Boolean = {
    var least = -1
    var layer = 0
    while (layer < heads.length) {
      if (heads(layer) != null && (least < 0 || Row.byKey.compare(heads(layer), heads(least)) < 0)) least = layer
      layer += 1
    }
    if (least < 0) return false
    current = heads(least)
    layer = least
    while (layer < heads.length) {
      if (heads(layer) != null && (layer == least || Row.byKey.compare(heads(layer), current) == 0)) heads(layer) = nextOf(layer)
      layer += 1
    }
    true
  }

  private def nextOf(layer: Int): AnyRef = if (layers.get(layer).hasNext) layers.get(layer).next() else null
}
