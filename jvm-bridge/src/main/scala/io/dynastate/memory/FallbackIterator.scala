package io.dynastate.memory

/** All rows of a version that has no buckets, under an attempt's own layers, which are released at the end, or at
 * `close`. If the disk fails, the rows that are left come from where they are durable.
 */
private[memory] final class FallbackIterator private (base: Version, family: Int, overlay: List[Slots],
    below: Option[List[Slots]]) extends RowIterator {
  private[this] val first = below.map { layers =>
    overlay.foreach(_.retain())
    new SlotIterator((overlay ++ layers).toArray, showAll = false)
  }.orNull
  private[this] var rest: BucketwiseIterator = if (first == null) left() else null
  private[this] var isClosed = false

  override def row: Row = if (rest == null) first.row else rest.row

  private[memory] override def baseRow: Row = if (rest == null) first.baseRow else null

  override def advance(): Boolean = !isClosed && {
    val hasRow =
      if (rest != null) advanceRest()
      else
        try first.advance()
        catch {
          case _: RowsUnreadable =>
            rest = left()
            advanceRest()
        }
    if (!hasRow) close()
    hasRow
  }

  override def close(): Unit = if (!isClosed) {
    isClosed = true
    if (first != null) first.close()
    if (rest != null) rest.close()
    overlay.foreach(_.release())
  }

  private def advanceRest(): Boolean = {
    while (rest.advance()) if (first == null || !first.hasGiven(rest.hash, rest.row)) return true
    false
  }

  private def left(): BucketwiseIterator = {
    overlay.foreach(_.retain())
    new BucketwiseIterator(base.versions.durable(base), family, overlay)
  }
}

private[memory] object FallbackIterator {
  def apply(base: Version, family: Int, overlay: List[Slots]): RowIterator = {
    val below =
      try Some(base.versions.share(base, family, 0))
      catch { case _: RowsUnreadable => None }
    if (below.exists(_.forall(_.diskPages == null))) new SlotIterator((overlay ++ below.get).toArray, showAll = false)
    else new FallbackIterator(base, family, overlay, below)
  }
}
