package io.dynastate.memory

import java.nio.ByteBuffer

/** Rows of stacked layers, topmost first: a row is hidden if a higher layer has its key, also as a delete marker. Lists
 * know their segments. Delete markers, and segments by themselves, are returned with `showAll` only. Layers above
 * `firstLayer` only hide. The layers are released at the end, or at `close`.
 *
 * Of each layer first the rows on the heap, in the order of its slots; then those on disk, page after page.
 */
final class SlotIterator(layers: Array[Slots], showAll: Boolean, firstLayer: Int = 0, durable: Row.Get = Slots.Nothing)
  extends RowIterator {
  private[this] var currentLayer = firstLayer
  private[this] var currentSlot = -1
  private[this] var isClosed = false
  private[this] val current, above = new Row
  private[this] var currentHash = 0
  /** The page on disk that is read; null: none yet, or rows on the heap are. */
  private[this] var live: LiveRows = _
  private[this] var page = 0
  /** Keys of rows on disk that were given and share their hash with others; null: there are none. */
  private[this] var repeats: java.util.HashSet[ByteBuffer] = _

  override def row: Row = current

  def hash: Int = currentHash

  /** A row on the heap, too: it may be on disk before the fold. */
  private[memory] override def baseRow: Row =
    if (currentLayer < layers.length && currentSlot >= 0 && layers(currentLayer).diskPages != null) current else null

  /** The layer and the slot of the row. */
  private[memory] def layer: Int = currentLayer

  private[memory] def slot: Int = currentSlot

  override def advance(): Boolean = {
    while (!isClosed && currentLayer < layers.length) {
      val slots = layers(currentLayer)
      while (nextOnHeap(slots) || nextOnDisk(slots))
        if ((showAll || !current.isDelete && !current.isSegment) && !isHidden) {
          if (!showAll) Slots.findSegments(current, currentHash, layers, durable)
          if (!showAll && live != null && slots.isRepeated(currentHash)) {
            if (repeats == null) repeats = new java.util.HashSet
            repeats.add(ByteBuffer.wrap(current.key))
          }
          return true
        }
      currentLayer += 1
      currentSlot = -1
      live = null
      page = 0
    }
    close()
    false
  }

  override def close(): Unit = if (!isClosed) {
    isClosed = true
    layers.foreach(_.release())
  }

  /** Whether the row of a key came before the one at which `advance` failed. Only the lowest layer may be on disk. */
  private[memory] def hasGiven(hash: Int, row: Row): Boolean = {
    var layer = firstLayer
    while (layer < layers.length) {
      val slots = layers(layer).slotsOf(hash)
      val twin = slots.find(slot => !layers(layer).isOnDisk(slot) && hasKey(layers(layer), slot, row))
      if (twin.nonEmpty) return isBeforeFailure(layer, twin.get)
      val (early, late) = slots.filter(layers(layer).isOnDisk(_)).partition(isBeforeFailure(layer, _))
      if (early.nonEmpty || late.nonEmpty) return late.isEmpty ||
        repeats != null && repeats.contains(ByteBuffer.wrap(row.key))
      layer += 1
    }
    false
  }

  private def hasKey(slots: Slots, slot: Int, row: Row): Boolean = {
    slots.read(slot, above)
    above.keyLengthAndKind == row.keyLengthAndKind && above.compareKeys(row) == 0
  }

  private def isBeforeFailure(layer: Int, slot: Int): Boolean = layer < currentLayer || layer == currentLayer && {
    val slots = layers(layer)
    // Rows on disk come after all slots.
    def turnOf(address: Int): Long = slots.capacity + Integer.toUnsignedLong(address)
    val failedAt =
      if (live != null) turnOf(live.address)
      else if (currentSlot < slots.capacity) currentSlot.toLong
      else turnOf(RowArena.addressOf(page, 0))
    (if (slots.isOnDisk(slot)) turnOf(slots.addressAt(slot)) else slot.toLong) < failedAt
  }

  private def nextOnHeap(slots: Slots): Boolean = live == null && {
    do {
      currentSlot += 1
      if (currentSlot % SlotIterator.BlockSlots == 0)
        slots.touchRows(currentSlot, math.min(currentSlot + SlotIterator.BlockSlots, slots.capacity))
    } while (currentSlot < slots.capacity && (slots.isFree(currentSlot) || slots.isOnDisk(currentSlot)))
    val hasSlot = currentSlot < slots.capacity
    if (hasSlot) {
      slots.read(currentSlot, current)
      currentHash = slots.hashAt(currentSlot)
    }
    hasSlot
  }

  private def nextOnDisk(slots: Slots): Boolean = slots.diskPages != null && {
    while (live == null || !live.advance()) {
      while (page < slots.diskPages.length && slots.diskPages(page) == null) page += 1
      if (page >= slots.diskPages.length) return false
      val onDisk = slots.diskPages(page)
      live = null
      currentSlot = slots.capacity
      live = new LiveRows(slots, page, slots.share.readAll(onDisk), onDisk.length)
      page += 1
    }
    current.pointTo(live.row)
    currentHash = live.hash
    currentSlot = live.slot
    true
  }

  private def isHidden: Boolean = {
    var other = 0
    while (other < currentLayer) {
      if (layers(other).get(currentHash, current.bytes, current.keyOffset, current.keyLengthAndKind, above)) return true
      other += 1
    }
    false
  }
}

private object SlotIterator {
  /** Slots whose rows are brought into the processor's cache at once. */
  private val BlockSlots = 64
}
