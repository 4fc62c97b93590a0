package io.dynastate.memory

/** Rows of a range in order: an attempt's own, with delete markers, merged with those of its base. The base is read a
 * batch at a time, because a version never changes, even if the tree does.
 */
final class ScanIterator(base: Version, family: Int, from: Row, to: Row, own: RowIterator) extends RowIterator {
  private[this] var isOwnRead, hasOwn = false
  private[this] var batch: RowBatch = _
  private[this] var batchAt = 0
  private[this] var batchLimit = base.versions.scanBatch(isFirst = true)
  private[this] val theirs = new Row
  private[this] var current: Row = _
  private[this] var isClosed = false
  private[this] val isOnDisk = base.versions.disk.bytes > 0

  override def row: Row = current

  private[memory] override def baseRow: Row = if (isOnDisk && (current eq theirs)) current else null

  override def advance(): Boolean = {
    while (!isClosed) {
      // Not before it is needed: the row that was given last may be its own.
      if (!isOwnRead) hasOwn = own.advance()
      isOwnRead = true
      val hasTheirs = hasBase
      if (!hasOwn && !hasTheirs) return false
      if (hasTheirs) batch.read(batchAt, theirs)
      val order = if (!hasOwn) 1 else if (!hasTheirs) -1 else own.row.compareKeys(theirs)
      if (order <= 0) isOwnRead = false
      if (order >= 0) batchAt += 1
      current = if (order <= 0) own.row else theirs
      if (!current.isDelete) return true
    }
    false
  }

  override def close(): Unit = isClosed = true

  /** Read the next batch, where one is needed; false at the end. */
  private def hasBase: Boolean = {
    if (batch == null) batch = base.versions.scan(base, family, from, inclusive = true, to, batchLimit)
    else if (batchAt == batch.size && batch.size == batchLimit) {
      val last = new Row
      batch.read(batch.size - 1, last)
      batchLimit = base.versions.scanBatch(isFirst = false)
      batch = base.versions.scan(base, family, last, inclusive = false, to, batchLimit)
      batchAt = 0
    }
    batchAt < batch.size
  }
}
