package io.dynastate.memory

/**
 * Rows of stacked layers, topmost first: a row is hidden if a higher layer has its key, also as a delete marker. Delete markers are
 * returned with `showDeletes` only. Layers above `firstLayer` only hide. The layers are released at the end, or at `close`.
 */
final class SlotIterator(layers: Array[Slots], showDeletes: Boolean, firstLayer: Int = 0) extends RowIterator {
  private[this] var layer = firstLayer
  private[this] var slot = -1
  private[this] var closed = false
  private[this] var currentRow: AnyRef = _
  private[this] var currentHash = 0

  override def row: AnyRef = currentRow

  def hash: Int = currentHash

  override def advance(): Boolean = {
    while (!closed && layer < layers.length) {
      val slots = layers(layer)
      slot += 1
      while (slot < slots.capacity) {
        val candidate = slots.rowAt(slot)
        if (candidate != null && (showDeletes || !Row.isDelete(candidate)) && !isHidden(candidate, slots.hashAt(slot))) {
          currentRow = candidate
          currentHash = slots.hashAt(slot)
          return true
        }
        slot += 1
      }
      layer += 1
      slot = -1
    }
    close()
    false
  }

  override def close(): Unit = if (!closed) {
    closed = true
    currentRow = null
    layers.foreach(_.release())
  }

  private def isHidden(row: AnyRef, hash: Int): Boolean = {
    val root = Row.root(row)
    var above = 0
    while (above < layer) {
      if (layers(above).get(hash, root, EncodedRow.KeyOffset, EncodedRow.keyLength(root)) != null) return true
      above += 1
    }
    false
  }
}
