package io.dynastate.memory

/** All rows of a version, bucket by bucket, under an attempt's own layers, which are released at the end or `close`. */
final class BucketwiseIterator(base: Version, family: Int, overlay: List[Slots]) extends RowIterator {
  private[this] val buckets = 1 << base.versions.bucketBits(base)
  private[this] var bucket = -1
  private[this] var isClosed = false
  overlay.foreach(_.retain())
  private[this] var current = new SlotIterator(overlay.toArray, showAll = false, durable = durable)

  override def row: Row = current.row

  def hash: Int = current.hash

  override def advance(): Boolean = {
    while (!isClosed) {
      if (current.advance()) return true
      bucket += 1
      if (bucket < buckets) {
        val theirs = base.versions.share(base, family, bucket)
        overlay.foreach(_.retain())
        current = new SlotIterator((overlay ++ theirs).toArray, showAll = false, firstLayer = overlay.length, durable)
      } else close()
    }
    false
  }

  private def durable: Row.Get = base.versions.get(base, family, _, _, _, _, _)

  override def close(): Unit = if (!isClosed) {
    isClosed = true
    current.close()
    overlay.foreach(_.release())
  }
}
