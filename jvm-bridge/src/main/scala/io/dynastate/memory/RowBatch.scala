package io.dynastate.memory

/** Rows, by number. They never change. */
final class RowBatch(expected: Int = 32) {
  private[this] var arrays = new Array[Array[Byte]](math.max(1, expected))
  private[this] var positions = new Array[Int](arrays.length)
  /** Rows with segments, by number; null: there are none. */
  private[this] var lists: java.util.HashMap[Int, Row] = _
  private[this] var count = 0

  def size: Int = count

  def add(row: Row): Unit = {
    if (count == arrays.length) {
      val length = Math.addExact(count, count / 4 + 16)
      arrays = java.util.Arrays.copyOf(arrays, length)
      positions = java.util.Arrays.copyOf(positions, length)
    }
    arrays(count) = row.bytes
    positions(count) = row.at
    if (row.segments != null) {
      if (lists == null) lists = new java.util.HashMap
      val list = new Row
      list.pointTo(row)
      lists.put(count, list)
    }
    count += 1
  }

  /** All rows, in the order in which they were added. */
  def iterator: RowIterator = new RowIterator {
    private[this] var next = 0
    override val row = new Row

    override def advance(): Boolean = next < RowBatch.this.size && {
      read(next, row)
      next += 1
      true
    }

    override def close(): Unit = ()
  }

  def read(number: Int, into: Row): Unit = {
    val list = if (lists == null) null else lists.get(number)
    if (list == null) into.pointTo(arrays(number), positions(number)) else into.pointTo(list)
  }
}
