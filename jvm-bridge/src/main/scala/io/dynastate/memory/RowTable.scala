package io.dynastate.core

import java.util.concurrent.atomic.AtomicInteger

/**
 * A hash map from key bytes to rows: open addressing with linear probing, at most three quarters full, no tombstones.
 *
 * The home of a hash is its product with a number that is another for every capacity. Were it the same, filling a growing table
 * in the order of another table's slots, or in the order of hashes, as parts are stored, would put all keys into one
 * corner of it, and take time quadratic in their number (measured: 1.4 µs a row instead of 0.3 for 20,000 rows).
 *
 * Iterators work on shared slots: `share` marks them, and the next change copies them first if a reader is still at work.
 * Not safe for threads; whoever owns the table guards it.
 */
final class RowTable(expectedRows: Int = 0) {
  private[this] var slots = new Slots(RowTable.capacityFor(expectedRows))
  private[this] var count = 0
  private[this] var rowHeapBytes = 0L
  /** The rows in the order of their keys; made when they are first asked for in order, and kept up from then on. */
  private[this] var ordered: java.util.TreeSet[AnyRef] = _

  def size: Int = count

  /** Bytes of heap: rows, slots and order. */
  def heapBytes: Long = rowHeapBytes + 8L * slots.capacity + (if (ordered == null) 0L else RowTable.OrderedRowBytes * count)

  /** The row of a key, or null. */
  def find(hash: Int, base: AnyRef, offset: Long, length: Int): AnyRef = slots.find(hash, base, offset, length)

  /** The rows by key, as unsigned bytes. Not stable: for whoever reads while nothing changes. */
  def inOrder: java.util.NavigableSet[AnyRef] = {
    if (ordered == null) {
      ordered = new java.util.TreeSet[AnyRef](Row.byKey)
      var slot = 0
      while (slot < slots.capacity) {
        if (slots.rows(slot) != null) ordered.add(slots.rows(slot))
        slot += 1
      }
    }
    ordered
  }

  /** Put a row in place of the one with its key, which is returned, or null. */
  def put(hash: Int, row: AnyRef): AnyRef = {
    own()
    val root = Row.root(row)
    val at = slots.indexOf(hash, root, Entry.KeyOffset, Entry.keyLength(root))
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
      // Removed first, because a set keeps the element it has, and with it the old row.
      if (previous != null) ordered.remove(previous)
      ordered.add(row)
    }
    previous
  }

  /** Remove the row of a key, which is returned, or null. */
  def remove(hash: Int, base: AnyRef, offset: Long, length: Int): AnyRef = {
    val found = slots.indexOf(hash, base, offset, length)
    if (slots.rows(found) == null) return null
    own()
    val previous = slots.rows(found)
    slots.close(found)
    count -= 1
    rowHeapBytes -= Row.heapBytes(previous)
    if (ordered != null) ordered.remove(previous)
    previous
  }

  /** The slots as they are now. They will not change until `Slots.release`; without it the next change copies them. */
  def share(): Slots = {
    slots.readers.incrementAndGet()
    slots
  }

  /** A table with the same rows, which the two then change apart. */
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

  /** Slots that hold rows, ordered by the highest byte of their hashes (a counting sort). For whoever shares the slots. */
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

/** The arrays of a table. `capacity` is a power of two; a slot is free where its row is null. */
final class Slots(val capacity: Int) {
  private[core] val hashes = new Array[Int](capacity)
  private[core] val rows = new Array[AnyRef](capacity)
  private[core] val readers = new AtomicInteger
  private[this] val shift = Integer.numberOfLeadingZeros(capacity) + 1
  private[this] val mask = capacity - 1
  /** Odd, and another for every capacity: a multiple of 2^32 divided by the golden ratio. */
  private[this] val multiplier = 0x9E3779B1 * (2 * Integer.numberOfTrailingZeros(capacity) + 1)

  private def home(hash: Int): Int = (hash * multiplier) >>> shift

  /** One more reader of slots that are shared already. */
  def retain(): Unit = readers.incrementAndGet()

  /** A reader is done with these slots. */
  def release(): Unit = readers.decrementAndGet()

  def rowAt(slot: Int): AnyRef = rows(slot)

  def hashAt(slot: Int): Int = hashes(slot)

  def find(hash: Int, base: AnyRef, offset: Long, length: Int): AnyRef = rows(indexOf(hash, base, offset, length))

  /** The slot that holds the key, or the free one where it belongs. */
  private[core] def indexOf(hash: Int, base: AnyRef, offset: Long, length: Int): Int = {
    var at = home(hash)
    var row = rows(at)
    while (row != null && !(hashes(at) == hash && Entry.hasKey(Row.root(row), base, offset, length))) {
      at = (at + 1) & mask
      row = rows(at)
    }
    at
  }

  /** Free a slot, and move up what follows it, so that every probe still finds its key. */
  private[core] def close(freed: Int): Unit = {
    var hole = freed
    var at = (hole + 1) & mask
    while (rows(at) != null) {
      val distanceFromHome = (at - home(hashes(at))) & mask
      if (distanceFromHome >= ((at - hole) & mask)) {
        hashes(hole) = hashes(at)
        rows(hole) = rows(at)
        hole = at
      }
      at = (at + 1) & mask
    }
    rows(hole) = null
  }

  private[core] def copyTo(newCapacity: Int): Slots = {
    val copy = new Slots(newCapacity)
    if (newCapacity == capacity) {
      System.arraycopy(hashes, 0, copy.hashes, 0, capacity)
      System.arraycopy(rows, 0, copy.rows, 0, capacity)
    } else {
      var slot = 0
      while (slot < capacity) {
        if (rows(slot) != null) copy.add(hashes(slot), rows(slot))
        slot += 1
      }
    }
    copy
  }

  /** Add a row whose key is known not to be there. */
  private def add(hash: Int, row: AnyRef): Unit = {
    var at = home(hash)
    while (rows(at) != null) at = (at + 1) & mask
    hashes(at) = hash
    rows(at) = row
  }
}
