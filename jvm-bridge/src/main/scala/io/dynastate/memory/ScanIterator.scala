package io.dynastate.memory

/** Rows of a range in order: an attempt's own, with delete markers, merged with those of its base. The base is read a
 * batch at a time, because a version never changes, even if the tree does.
 *
 * @param firstBatch rows of the base that are read first; then twice as many each time, up to what is best
 */
final class ScanIterator(base: Version, family: Int, private[this] var from: Row, to: Row,
    private[this] var own: RowIterator, firstBatch: Int = ScanIterator.FirstBatch)
  extends RowIterator {
  private[this] var isOwnRead, hasOwn = false
  /** The last rows that were read, all from `from` on, or after it; null: none. */
  private[this] var batch: RowBatch = _
  private[this] var isFromIncluded = true
  private[this] var batchAt = 0
  private[this] var batchLimit = base.versions.scanBatch(firstBatch)
  private[this] val theirs, other = new Row
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

  /** Whether it is of a version and a family. */
  def isOf(version: Version, id: Int): Boolean = (version eq base) && id == family

  /** Continue from another key (null: the first), with other rows of the attempt. The rows of the base that were read
   * last are not read again, if the key is among them.
   */
  def moveTo(key: Row, ownRows: RowIterator): Unit = {
    own = ownRows
    isOwnRead = false
    isClosed = false
    current = null
    if (hasRead(key)) batchAt = firstFrom(key)
    else {
      batch = null
      from = key
      isFromIncluded = true
      batchLimit = base.versions.scanBatch(firstBatch)
    }
  }

  /** Whether the last batch has all rows from a key on, up to its own last one, which is not before the key. */
  private def hasRead(key: Row): Boolean = batch != null && {
    val order = if (from == null) 1 else if (key == null) -1 else key.compareKeys(from)
    (order > 0 || order == 0 && isFromIncluded) && (isLast || key == null || {
      batch.read(batch.size - 1, other)
      key.compareKeys(other) <= 0
    })
  }

  /** Whether the base has no rows after the batch. */
  private def isLast: Boolean = batch.size < batchLimit

  /** The number of the first row of the batch that is not before a key. */
  private def firstFrom(key: Row): Int = {
    var low = 0
    var high = if (key == null) 0 else batch.size
    while (low < high) {
      val middle = (low + high) >>> 1
      batch.read(middle, other)
      if (other.compareKeys(key) < 0) low = middle + 1 else high = middle
    }
    low
  }

  /** Read the next batch, where one is needed; false at the end. */
  private def hasBase: Boolean = {
    if (batch == null) read()
    else if (batchAt == batch.size && !isLast) {
      val last = new Row
      batch.read(batch.size - 1, last)
      from = last
      isFromIncluded = false
      batchLimit = base.versions.scanBatch(math.min(batchLimit, ScanIterator.BatchMax) * 2)
      read()
    }
    batchAt < batch.size
  }

  private def read(): Unit = {
    batch = base.versions.scan(base, family, from, isFromIncluded, to, batchLimit)
    batchAt = 0
  }
}

private[memory] object ScanIterator {
  /** Most scans are of one prefix, and short. */
  val FirstBatch = 32
  /** Of rows in memory and on disk. */
  val BatchMax = 1024
}
