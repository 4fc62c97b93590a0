package io.dynastate.memory

/** A cursor over the rows of a page that slots have: `advance`, then `row` and its slot. Other slots may change. */
private[memory] final class LiveRows(slots: Slots, page: Int, bytes: Array[Byte], end: Int) {
  private[this] val positions, hashes = new Array[Int](RowTable.BlockRows)
  private[this] var rows, each, next = 0
  private[this] var position = -1
  private[this] val current = new Row

  def row: Row = current

  def hash: Int = hashes(each - 1)

  def slot: Int = position

  def address: Int = RowArena.addressOf(page, positions(each - 1))

  def advance(): Boolean = {
    while (each < rows || readBlock()) {
      position = slots.indexOf(hashes(each), RowArena.addressOf(page, positions(each)))
      each += 1
      if (position >= 0) {
        current.pointTo(bytes, positions(each - 1))
        return true
      }
    }
    false
  }

  /** Bring the slots of the next rows into the processor's cache at once. */
  private def readBlock(): Boolean = {
    rows = 0
    each = 0
    while (rows < RowTable.BlockRows && next < end) {
      positions(rows) = next
      hashes(rows) = EncodedRow.hash(bytes, next)
      next += RowArena.padded(EncodedRow.length(bytes, next))
      rows += 1
    }
    slots.touch(hashes, rows)
    rows > 0
  }
}
