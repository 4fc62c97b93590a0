package io.dynastate.memory

/** A cursor over rows: `advance`, then `row`. */
trait RowIterator {
  /** Go to the next row; false at the end. */
  def advance(): Boolean

  /** The row; the cursor moves with `advance`. */
  def row: Row

  /** The row, if it is one of the base, whose rows are on disk in part; else null. */
  private[memory] def baseRow: Row = null

  /** Release what it reads. The iterator does so itself at the end. */
  def close(): Unit
}
