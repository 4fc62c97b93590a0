package io.dynastate.memory

/** A cursor over rows: `advance`, then `row`. */
trait RowIterator {
  /** Go to the next row; false at the end. */
  def advance(): Boolean

  def row: AnyRef

  /** Release what it reads. The iterator does so itself at the end. */
  def close(): Unit
}
