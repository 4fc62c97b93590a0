package io.dynastate.memory

/** All rows of a version, bucket by bucket, under an attempt's own layers, which are released at the end or `close`. */
final class BucketwiseIterator(base: Version, family: Int, own: List[Slots]) extends RowIterator {
  private[this] val buckets = 1 << base.versions.bucketBits(base)
  private[this] var bucket = -1
  private[this] var closed = false
  own.foreach(_.retain())
  private[this] var current = new SlotIterator(own.toArray, showAll = false, durable = durable)

  override def row: Row = current.row

  def hash: Int = current.hash

  override def advance(): Boolean = {
    while (!closed) {
      if (current.advance()) return true
      bucket += 1
      if (bucket < buckets) {
        val theirs = base.versions.share(base, family, bucket)
        own.foreach(_.retain())
        current = new SlotIterator((own ++ theirs).toArray, showAll = false, firstLayer = own.length, durable)
      } else close()
    }
    false
  }

  private def durable: Row.Get = base.versions.get(base, family, _, _, _, _, _)

  override def close(): Unit = if (!closed) {
    closed = true
    current.close()
    own.foreach(_.release())
  }
}
