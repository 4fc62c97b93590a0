package io.dynastate.memory

import java.util.concurrent.atomic.AtomicInteger

/** The arrays of a table. `capacity` is a power of two; a slot without a row is free. */
final class Slots(val capacity: Int) {
  private[memory] val hashes = new Array[Int](capacity)
  private[memory] val rows = new Array[AnyRef](capacity)
  private[memory] val readers = new AtomicInteger
  private[this] val shift = Integer.numberOfLeadingZeros(capacity) + 1
  private[this] val mask = capacity - 1
  /** Odd, and different for every capacity: a multiple of 2^32 divided by the golden ratio. */
  private[this] val multiplier = 0x9E3779B1 * (2 * Integer.numberOfTrailingZeros(capacity) + 1)

  private def home(hash: Int): Int = (hash * multiplier) >>> shift

  /** Add a reader of slots that are shared already. */
  def retain(): Unit = readers.incrementAndGet()

  /** End one reader's use of these slots. */
  def release(): Unit = readers.decrementAndGet()

  def rowAt(slot: Int): AnyRef = rows(slot)

  def hashAt(slot: Int): Int = hashes(slot)

  def get(hash: Int, base: AnyRef, offset: Long, length: Int): AnyRef = rows(indexOf(hash, base, offset, length))

  /** The slot that holds the key, or the free one for it. */
  private[memory] def indexOf(hash: Int, base: AnyRef, offset: Long, length: Int): Int = {
    var at = home(hash)
    var row = rows(at)
    while (row != null && !(hashes(at) == hash && EncodedRow.hasKey(Row.root(row), base, offset, length))) {
      at = (at + 1) & mask
      row = rows(at)
    }
    at
  }

  /** Free a slot, and move up the rows after it, so that every probe still finds its key. */
  private[memory] def close(freed: Int): Unit = {
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

  private[memory] def copyTo(newCapacity: Int): Slots = {
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

  /** Add a row with a new key. */
  private def add(hash: Int, row: AnyRef): Unit = {
    var at = home(hash)
    while (rows(at) != null) at = (at + 1) & mask
    hashes(at) = hash
    rows(at) = row
  }
}
