package io.dynastate.memory

/** The values of a row, as when it was made: `advance`, then the value is `length` bytes of `bytes` from `at` on. */
final class ValueCursor private[memory] (row: Row) {
  private[this] val segments = if (row.segments == null) Array.empty[Row] else row.segments
  private[this] val rowBytes = row.bytes
  private[this] val isList = row.isList
  private[this] val ownFrom = if (isList) row.entriesAt else row.valueAt
  private[this] val ownUntil = if (isList) ownFrom + row.used else ownFrom + row.valueLength
  private[this] var part = -1
  private[this] var array: Array[Byte] = rowBytes
  private[this] var position, size, next, until = 0

  def bytes: Array[Byte] = array

  def at: Int = position

  def length: Int = size

  def value: StoredValue = new StoredValue(array, position, size)

  def advance(): Boolean = {
    while (next >= until || part < 0) {
      part += 1
      if (part > segments.length) return false
      if (part < segments.length) {
        array = segments(part).bytes
        next = segments(part).valueAt
        until = next + segments(part).valueLength
      } else if (isList) {
        array = rowBytes
        next = ownFrom
        until = ownUntil
      } else {
        // The only value.
        next = ownUntil
        until = ownUntil
        position = ownFrom
        size = ownUntil - ownFrom
        return true
      }
    }
    size = EncodedRow.int(array, next)
    position = next + EncodedRow.EntryHeaderBytes
    next = position + size
    true
  }
}
