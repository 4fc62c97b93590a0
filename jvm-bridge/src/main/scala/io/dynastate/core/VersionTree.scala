package io.dynastate.core

/**
 * One version of a store in memory. It is the head of its tree, and then the tree's tables hold its rows; or it has a link
 * to a version nearer to the head, and undo records: for every key in which the two differ, this version's entry, or a delete marker.
 *
 * Links point towards the head only, so a version nobody holds any more is garbage, with its undo records.
 */
final class Version private[core] (val number: Long, val attempt: Attempt, val tree: VersionTree, val keys: Array[Long]) {
  private[core] var next: Version = _
  private[core] var undo: Families = _

  override def toString: String = s"$number/$attempt"
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
 * Safe for threads: the tree is its own lock, held for one key, or for one fold.
 */
final class VersionTree private (private[this] val tables: Families) {
  private var head: Version = _

  /** The entry of a key at a version, or null. Never a delete marker. */
  def find(version: Version, family: Int, hash: Int, base: AnyRef, offset: Long, length: Int): Array[Byte] = synchronized {
    var at = version
    while (at.next != null) {
      val table = at.undo.existing(family)
      if (table != null) {
        val entry = table.find(hash, base, offset, length)
        if (entry != null) return if (Entry.isDelete(entry)) null else entry
      }
      at = at.next
    }
    val table = tables.existing(family)
    if (table == null) null else table.find(hash, base, offset, length)
  }

  /** The layers that make up a family at a version, topmost first; whoever reads them must release them. */
  def share(version: Version, family: Int): List[Slots] = synchronized {
    var layers = List.empty[Slots]
    var at = version
    while (at.next != null) {
      val table = at.undo.existing(family)
      if (table != null && table.size > 0) layers ::= table.share()
      at = at.next
    }
    val table = tables.existing(family)
    if (table != null && table.size > 0) layers ::= table.share()
    layers.reverse
  }

  /**
   * Make the version that changes lead to from its base, and count its keys. The changes belong to the tree from then on.
   * Nobody need hold the new version: if its commit fails, it is garbage, and the base is as readable as before.
   */
  def fold(base: Version, changes: Families, number: Long, attempt: Attempt): Version = synchronized {
    require(base.tree eq this, "a version of another tree")
    moveHeadTo(base)
    val undo = apply(changes)
    val version = new Version(number, attempt, this, VersionTree.countKeys(tables))
    base.next = version
    base.undo = undo
    head = version
    version
  }

  /** Bytes of heap of the head's rows. */
  def heapBytes: Long = synchronized(tables.heapBytes)

  /** Turn round the links between a version and the head. */
  private def moveHeadTo(version: Version): Unit = {
    var path = List.empty[Version]
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
      val entry = slots.entryAt(slot)
      if (entry != null) {
        val hash = slots.hashAt(slot)
        val keyLength = Entry.keyLength(entry)
        val previous =
          if (Entry.isDelete(entry)) table.remove(hash, entry, Entry.KeyOffset, keyLength) else table.put(hash, entry)
        undo.put(hash, if (previous != null) previous else Entry.delete(entry, Entry.KeyOffset, keyLength))
      }
      slot += 1
    }
    slots.release()
  }
}

object VersionTree {
  /** Version 0: no rows, whatever the tables hold. */
  def empty(): Version = load(new Families, 0L, Attempt.None)

  /** A tree whose head is a version that the engine brought. The tables belong to the tree from then on. */
  def load(tables: Families, number: Long, attempt: Attempt): Version = {
    val tree = new VersionTree(tables)
    val version = new Version(number, attempt, tree, countKeys(tables))
    tree.synchronized(tree.head = version)
    version
  }

  private def countKeys(tables: Families): Array[Long] =
    Array.tabulate(tables.bound)(family => if (tables.existing(family) == null) 0L else tables.existing(family).size.toLong)
}
