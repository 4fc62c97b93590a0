package io.dynastate.memory

/** Row tables by column family id; ids are small and dense. A family without rows has no table. Not safe for threads.
 *
 * @param storage where their rows are; null: on the heap
 * @param isLoad all rows of a version are put into them first
 */
final class RowTables(storage: RowStorage = null, isLoad: Boolean = false) {
  /** What they take of the storage; null: they have none. */
  private[memory] val share: StorageShare = if (storage == null) null else new StorageShare(storage)
  private[this] var tables = new Array[RowTable](1)
  private[this] val scans = new java.util.BitSet
  /** Of changes: rows that they replace, as they are on disk, as far as they were read; null: none. */
  private[memory] var replaced: RowTables = _

  /** Put rows of a family where its other rows are in the order of their keys: it is scanned. */
  def keepInOrder(family: Int): Unit = scans.set(family)

  def isKeptInOrder(family: Int): Boolean = scans.get(family)

  /** One more than the largest family id that may have a table. */
  def bound: Int = tables.length

  /** The table of a family, or null while it has no rows. */
  def existing(family: Int): RowTable = if (family < tables.length) tables(family) else null

  /** The table of a family, made with room for the expected rows if it has none. */
  def apply(family: Int, expectedRows: Int = 0): RowTable = {
    if (family >= tables.length) tables = java.util.Arrays.copyOf(tables, Integer.highestOneBit(family) * 2)
    if (tables(family) == null) tables(family) = new RowTable(expectedRows, share, isLoad)
    tables(family)
  }

  /** Call `use` with each family that has a table. */
  def foreach(use: (Int, RowTable) => Unit): Unit = {
    var family = 0
    while (family < tables.length) {
      if (tables(family) != null) use(family, tables(family))
      family += 1
    }
  }

  def heapBytes: Long = sum(_.heapBytes)

  /** Bytes of live rows on the heap and on disk. */
  def bytes: Long = sum(_.bytes)

  /** Evacuate one page of each table in which more than a share is garbage. Returns whether there was one. */
  def evacuate(share: Double): Boolean = {
    var some = false
    foreach((_, table) => some |= table.evacuate(share))
    some
  }

  /** Independent tables with the same rows. */
  def copy(): RowTables = {
    val copy = new RowTables
    copy.take(tables.map(table => if (table == null) null else table.copy()))
    copy
  }

  private def take(newTables: Array[RowTable]): Unit = tables = newTables

  /** Rows of each family. */
  def counts: Array[Long] =
    Array.tabulate(tables.length)(family => if (tables(family) == null) 0L else tables(family).size.toLong)

  def rows: Long = sum(_.size.toLong)

  private def sum(of: RowTable => Long): Long = {
    var total = 0L
    foreach((_, table) => total += of(table))
    total
  }
}
