package io.dynastate.memory

/**
 * A hash map from key bytes to rows: open addressing with linear probing, at most three quarters full, no tombstones. It shrinks when
 * removals leave less than an eighth, because every iterator walks all slots.
 *
 * The home of a hash is its product with a number that differs by capacity. With the same number for all, filling a growing table in
 * the order of another table's slots, or in the order of hashes, as parts are stored, would put all keys into one corner of it, and
 * take time quadratic in their number (measured: 1.4 µs a row instead of 0.3 for 20,000 rows).
 *
 * Iterators work on shared slots: `share` marks them, and the next change copies them first if a reader still has them.
 * Not safe for threads; the owner of the table guards it.
 */
final class RowTable(expectedRows: Int = 0) {
  private[this] var slots = new Slots(RowTable.capacityFor(expectedRows))
  private[this] var count = 0
  private[this] var rowHeapBytes = 0L
  /** The rows in the order of their keys; made at the first ordered read, and maintained from then on. */
  private[this] var ordered: java.util.TreeSet[AnyRef] = _

  def size: Int = count

  /** Bytes of heap: rows, slots and order. */
  def heapBytes: Long = rowHeapBytes + 8L * slots.capacity + (if (ordered == null) 0L else RowTable.OrderedRowBytes * count)

  /** The row of a key, or null. */
  def get(hash: Int, base: AnyRef, offset: Long, length: Int): AnyRef = slots.get(hash, base, offset, length)

  /** The rows by key, as unsigned bytes. Valid until the next change. */
  def inOrder: java.util.NavigableSet[AnyRef] = {
    if (ordered == null) {
      val all = new java.util.TreeSet[AnyRef](Row.byKey)
      var slot = 0
      while (slot < slots.capacity) {
        if (slots.rows(slot) != null) all.add(slots.rows(slot))
        slot += 1
      }
      ordered = all // an error before leaves no half of them
    }
    ordered
  }

  /** Put a row; returns the row of the same key that it replaces, or null. */
  def put(hash: Int, row: AnyRef): AnyRef = {
    own()
    val root = Row.root(row)
    val at = slots.indexOf(hash, root, EncodedRow.KeyOffset, EncodedRow.keyLength(root))
    val previous = slots.rows(at)
    slots.hashes(at) = hash
    slots.rows(at) = row
    rowHeapBytes += Row.heapBytes(row)
    if (previous == null) {
      count += 1
      if (count > slots.capacity - slots.capacity / 4) grow()
    } else {
      rowHeapBytes -= Row.heapBytes(previous)
    }
    if (ordered != null) {
      // Remove first: adding an equal element would keep the old row.
      if (previous != null) ordered.remove(previous)
      ordered.add(row)
    }
    previous
  }

  /** Remove the row of a key; returns it, or null. */
  def remove(hash: Int, base: AnyRef, offset: Long, length: Int): AnyRef = {
    val found = slots.indexOf(hash, base, offset, length)
    if (slots.rows(found) == null) return null
    own()
    val previous = slots.rows(found)
    slots.close(found)
    count -= 1
    rowHeapBytes -= Row.heapBytes(previous)
    if (ordered != null) ordered.remove(previous)
    if (count < slots.capacity / 8 && slots.capacity > RowTable.CapacityMin) slots = slots.copyTo(slots.capacity / 2)
    previous
  }

  /** The slots as they are now. They do not change until `Slots.release`: a change before it copies them. */
  def share(): Slots = {
    slots.readers.incrementAndGet()
    slots
  }

  /** An independent table with the same rows. */
  def copy(): RowTable = {
    val copy = new RowTable
    copy.take(slots.copyTo(slots.capacity), count, rowHeapBytes)
    copy
  }

  private def take(newSlots: Slots, newCount: Int, newRowHeapBytes: Long): Unit = {
    slots = newSlots
    count = newCount
    rowHeapBytes = newRowHeapBytes
  }

  /** Slots that hold rows, ordered by the highest byte of their hashes (a counting sort). */
  def slotsByHash(): Array[Int] = {
    val ends = new Array[Int](256)
    var slot = 0
    while (slot < slots.capacity) {
      if (slots.rows(slot) != null) ends(slots.hashes(slot) >>> 24) += 1
      slot += 1
    }
    var byte = 1
    while (byte < 256) {
      ends(byte) += ends(byte - 1)
      byte += 1
    }
    val ordered = new Array[Int](count)
    slot = slots.capacity - 1
    while (slot >= 0) {
      if (slots.rows(slot) != null) {
        val byte = slots.hashes(slot) >>> 24
        ends(byte) -= 1
        ordered(ends(byte)) = slot
      }
      slot -= 1
    }
    ordered
  }

  private def own(): Unit = if (slots.readers.get > 0) slots = slots.copyTo(slots.capacity)

  private def grow(): Unit = slots = slots.copyTo(Math.multiplyExact(slots.capacity, 2))
}

object RowTable {
  private val CapacityMin = 16
  private val CapacityMax = 1 << 30
  /** A node of a red-black tree. */
  private val OrderedRowBytes = 40L

  private def capacityFor(rows: Int): Int = {
    var capacity = CapacityMin
    while (rows > capacity - capacity / 4 && capacity < CapacityMax) capacity *= 2
    capacity
  }
}
