package io.dynastate.memory

/** Rows of several tables in the order of their keys: of rows with the same key, the topmost table's. Delete markers
 * are included.
 *
 * @param atOnce rows on disk that are read at once
 */
private[memory] final class MergedLayers(from: Row, inclusive: Boolean, to: Row, atOnce: Int) extends RowIterator {
  private[this] val cursors = new java.util.ArrayList[KeyOrder#RangeCursor]
  /** The next row of each layer; null: all were given. */
  private[this] val heads = new java.util.ArrayList[Row]
  private[this] val current = new Row
  private[this] var isAtRow = false

  /** Add a table below those that were added before; null: none. */
  def add(table: RowTable): Unit = if (table != null && table.size > 0) add(table.inOrder)

  /** Add the rows of an order below those that were added before. */
  def add(order: KeyOrder): Unit = {
    cursors.add(order.range(from, inclusive, to, atOnce))
    heads.add(new Row)
    step(heads.size - 1)
  }

  override def row: Row = current

  override def close(): Unit = ()

  override def advance(): Boolean = {
    // Not at the end of the call before: the next rows may not be wanted, and are read from disk.
    if (isAtRow) pass()
    var least: Row = null
    var layer = 0
    while (layer < heads.size) {
      val head = heads.get(layer)
      if (head != null && (least == null || head.compareKeys(least) < 0)) least = head
      layer += 1
    }
    isAtRow = least != null
    if (isAtRow) current.pointTo(least)
    isAtRow
  }

  /** Pass the rows with the key of the current one. */
  private def pass(): Unit = {
    var layer = 0
    while (layer < heads.size) {
      if (heads.get(layer) != null && (heads.size == 1 || heads.get(layer).compareKeys(current) == 0)) step(layer)
      layer += 1
    }
  }

  private def step(layer: Int): Unit = if (!cursors.get(layer).advance(heads.get(layer))) heads.set(layer, null)
}
