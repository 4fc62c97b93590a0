package io.dynastate.memory

/**
 * Rows of a range in order: an attempt's own, merged with those of its base. The base is read a batch at a time, because a version never
 * changes, even if the tree does.
 */
final class ScanIterator(base: Version, family: Int, from: Array[Byte], to: Array[Byte], own: java.util.List[AnyRef]) extends RowIterator {
  private[this] var ownAt = 0
  private[this] var batch: java.util.List[AnyRef] = _
  private[this] var batchAt = 0
  private[this] var batchLimit = base.versions.scanBatch(isFirst = true)
  private[this] var currentRow: AnyRef = _

  override def row: AnyRef = currentRow

  override def advance(): Boolean = {
    while (true) {
      val mine = if (ownAt < own.size) own.get(ownAt) else null
      val theirs = peekBase()
      if (mine == null && theirs == null) return false
      val order = if (mine == null) 1 else if (theirs == null) -1 else Row.byKey.compare(mine, theirs)
      if (order <= 0) ownAt += 1
      if (order >= 0) batchAt += 1
      currentRow = if (order <= 0) mine else theirs
      if (!Row.isDelete(currentRow)) return true
    }
    false
  }

  override def close(): Unit = {
    ownAt = own.size
    batch = java.util.Collections.emptyList[AnyRef]
    batchAt = 0
  }

  private def peekBase(): AnyRef = {
    if (batch == null) batch = base.versions.scan(base, family, from, inclusive = true, to, batchLimit)
    else if (batchAt == batch.size && batch.size == batchLimit) {
      val last = Row.root(batch.get(batch.size - 1))
      batchLimit = base.versions.scanBatch(isFirst = false)
      batch = base.versions.scan(base, family, last, inclusive = false, to, batchLimit)
      batchAt = 0
    }
    if (batchAt < batch.size) batch.get(batchAt) else null
  }
}
