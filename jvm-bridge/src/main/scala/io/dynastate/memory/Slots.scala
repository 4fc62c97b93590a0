package io.dynastate.memory

import java.util.concurrent.atomic.AtomicInteger

/** The slots of a table, and the pages that hold their rows. `capacity` is a power of two. A slot has the hash of a row
 * and one more than its address, 32 bits each; 0: it is free.
 *
 * A `get` without a lock may find anything while slots change, but neither fails nor reads beyond an array.
 */
final class Slots(val capacity: Int) {
  private[memory] val entries = new Array[Long](capacity)
  /** The pages on the heap, and on disk (null: there are none), by number. */
  private[memory] var pages: Array[Array[Byte]] = _
  private[memory] var diskPages: Array[DiskPage] = _
  /** Of pages on disk: it lasts as long as somebody has slots. */
  private[memory] var share: StorageShare = _
  /** The marks of the rows, by slot, while a version is loaded; null: there are none. */
  private[memory] var marks: Array[Long] = _
  private[memory] val readers = new AtomicInteger
  private[this] val shift = Integer.numberOfLeadingZeros(capacity) + 1
  private[this] val mask = capacity - 1
  /** Without it, the compiler would remove the reads. */
  private[this] var lastRead = 0L
  /** Odd, and different for every capacity: a multiple of 2^32 divided by the golden ratio. */
  private[this] val multiplier = 0x9e3779b1 * (2 * Integer.numberOfTrailingZeros(capacity) + 1)

  /** Add a reader of slots that are shared already. */
  def retain(): Unit = readers.incrementAndGet()

  /** End one reader's use of these slots. */
  def release(): Unit = readers.decrementAndGet()

  def isFree(slot: Int): Boolean = entries(slot) == 0

  def hashAt(slot: Int): Int = Slots.hashOf(entries(slot))

  def isOnDisk(slot: Int): Boolean = pages(RowArena.pageOf(Slots.addressOf(entries(slot)))) == null

  def addressAt(slot: Int): Int = Slots.addressOf(entries(slot))

  /** Point a cursor to the row of a slot that is not free. */
  def read(slot: Int, into: Row): Unit = readRow(addressAt(slot), into)

  /** Point a cursor to the row of an address, or to a copy of it. */
  private[memory] def readRow(address: Int, into: Row): Unit = {
    val page = pages(RowArena.pageOf(address))
    if (page != null) into.pointTo(page, RowArena.positionOf(address))
    else share.readLive(diskPages(RowArena.pageOf(address)), RowArena.positionOf(address), into)
  }

  /** Whether a row has a hash. */
  private[memory] def hasHash(hash: Int): Boolean = {
    var at = home(hash)
    var rest = capacity
    while (entries(at) != 0 && Slots.hashOf(entries(at)) != hash && rest > 0) {
      at = (at + 1) & mask
      rest -= 1
    }
    Slots.hashOf(entries(at)) == hash && entries(at) != 0
  }

  /** The slot of the only row with a hash; -1: there is none, or another one. Not beside a change. */
  private[memory] def onlyWith(hash: Int): Int = {
    var position = -1
    var at = home(hash)
    while (entries(at) != 0) {
      if (hashAt(at) == hash) {
        if (position >= 0) return -1
        position = at
      }
      at = (at + 1) & mask
    }
    position
  }

  /** Point a cursor to the row of a key; false: none. It points to within its array, also beside a change. */
  def get(hash: Int, base: AnyRef, offset: Long, length: Int, into: Row): Boolean = {
    var at = home(hash)
    var rest = capacity
    var entry = entries(at)
    while (entry != 0 && rest > 0) {
      if (Slots.mayHave(entry, hash)) {
        val number = RowArena.pageOf(Slots.addressOf(entry))
        val position = RowArena.positionOf(Slots.addressOf(entry))
        val array = pages
        val page = if (number < array.length) array(number) else null
        if (page == null) { if (hasOnDisk(number, position, base, offset, length, into)) return true }
        else if (EncodedRow.hasKey(page, position, base, offset, length)) {
          into.pointTo(page, position)
          return true
        }
      }
      at = (at + 1) & mask
      rest -= 1
      entry = entries(at)
    }
    false
  }

  /** Point a cursor to a copy of the row at a position of a page on disk, if it has a key. */
  private def hasOnDisk(number: Int, position: Int, base: AnyRef, offset: Long, length: Int, into: Row): Boolean = {
    val array = diskPages
    val page = if (array != null && number < array.length) array(number) else null
    page != null && share.read(page, position, into) && EncodedRow.hasKey(into.bytes, into.at, base, offset, length)
  }

  /** The slot that holds the key, to whose row the cursor points then, or the free one for it; not beside a change. */
  private[memory] def indexOf(hash: Int, base: AnyRef, offset: Long, length: Int, into: Row): Int = {
    var at = home(hash)
    while (entries(at) != 0 && !(Slots.mayHave(entries(at), hash) &&
        holds(at, base, offset, length, into))) at = (at + 1) & mask
    at
  }

  /** The slot of the key that has a mark, or the free one for it; no row is read. */
  private[memory] def indexOf(hash: Int, mark: Long): Int = {
    var at = home(hash)
    while (entries(at) != 0 && !(hashAt(at) == hash && RowMark.isOfSameKey(marks(at), mark))) at = (at + 1) & mask
    at
  }

  /** The slots that have a hash. */
  private[memory] def slotsOf(hash: Int): List[Int] = {
    var matches = List.empty[Int]
    var at = home(hash)
    while (entries(at) != 0) {
      if (hashAt(at) == hash) matches ::= at
      at = (at + 1) & mask
    }
    matches
  }

  /** Whether several slots have a hash. */
  private[memory] def isRepeated(hash: Int): Boolean = {
    var count = 0
    var at = home(hash)
    while (entries(at) != 0) {
      if (hashAt(at) == hash) count += 1
      at = (at + 1) & mask
    }
    count > 1
  }

  /** The slot with an address, or -1. */
  private[memory] def indexOf(hash: Int, address: Int): Int = {
    val entry = Slots.entry(hash, address)
    var at = home(hash)
    while (entries(at) != 0 && entries(at) != entry) at = (at + 1) & mask
    if (entries(at) == 0) -1 else at
  }

  /** Read the slots of hashes, so that they are in the processor's cache. */
  private[memory] def touch(hashes: Array[Int], count: Int): Unit = {
    var read = 0L
    var each = 0
    while (each < count) {
      read += entries(home(hashes(each)))
      each += 1
    }
    while (marks != null && each > 0) {
      each -= 1
      read += marks(home(hashes(each)))
    }
    lastRead = read
  }

  /** Read the beginnings of the rows of hashes. */
  private[memory] def touchRows(hashes: Array[Int], count: Int): Unit = {
    var read = 0L
    var each = 0
    while (each < count) {
      var at = home(hashes(each))
      while (entries(at) != 0 && hashAt(at) != hashes(each)) at = (at + 1) & mask
      read += touchRow(at)
      each += 1
    }
    lastRead = read
  }

  /** Read the beginnings of the rows of some slots. */
  private[memory] def touchRows(from: Int, until: Int): Unit = {
    var read = 0L
    var slot = from
    while (slot < until) {
      read += touchRow(slot)
      slot += 1
    }
    lastRead = read
  }

  /** Read the first two cache lines of a row: nearly all keys, and most rows, end there. */
  private def touchRow(slot: Int): Int =
    if (entries(slot) == 0) 0
    else {
      val page = pages(RowArena.pageOf(addressAt(slot)))
      val position = RowArena.positionOf(addressAt(slot))
      if (page == null) 0 else page(position) + page(math.min(position + Slots.CacheLineBytes, page.length - 1))
    }

  private def holds(slot: Int, base: AnyRef, offset: Long, length: Int, into: Row): Boolean = {
    read(slot, into)
    EncodedRow.hasKey(into.bytes, into.at, base, offset, length)
  }

  private def home(hash: Int): Int = (hash * multiplier) >>> shift

  /** How many slots a `get` of a row passes before it. */
  private[dynastate] def distanceFromHome(slot: Int): Int = (slot - home(hashAt(slot))) & mask

  /** Free a slot, and move up the rows after it, so that every probe still finds its key. */
  private[memory] def close(bytes: Int): Unit = {
    var hole = bytes
    var at = (hole + 1) & mask
    while (entries(at) != 0) {
      if (distanceFromHome(at) >= ((at - hole) & mask)) {
        entries(hole) = entries(at)
        if (marks != null) marks(hole) = marks(at)
        hole = at
      }
      at = (at + 1) & mask
    }
    entries(hole) = 0
  }

  private[memory] def copyTo(newCapacity: Int): Slots = {
    val copy = new Slots(newCapacity)
    copy.pages = pages
    copy.diskPages = diskPages
    copy.share = share
    if (marks != null) copy.marks = new Array(newCapacity)
    if (newCapacity == capacity) {
      System.arraycopy(entries, 0, copy.entries, 0, capacity)
      if (marks != null) System.arraycopy(marks, 0, copy.marks, 0, capacity)
    } else {
      var slot = 0
      while (slot < capacity) {
        if (entries(slot) != 0) copy.add(entries(slot), if (marks == null) 0L else marks(slot))
        slot += 1
      }
    }
    copy
  }

  /** Add a row with a new key. */
  private def add(entry: Long, mark: Long): Unit = {
    var at = home(Slots.hashOf(entry))
    while (entries(at) != 0) at = (at + 1) & mask
    entries(at) = entry
    if (marks != null) marks(at) = mark
  }
}

private[memory] object Slots {
  private val CacheLineBytes = 64
  private val ComparedBits = 0xfff

  def entry(hash: Int, address: Int): Long = hash.toLong << 32 | address + 1L

  def hashOf(entry: Long): Int = (entry >>> 32).toInt

  def addressOf(entry: Long): Int = entry.toInt - 1

  /** Whether a row may have a hash, by some of its bits; the key decides. With all bits, keys would differ once in
   * billions of comparisons: the compiler would leave that case out, and compile again all that puts and gets when it
   * comes first, within a load.
   */
  private def mayHave(entry: Long, hash: Int): Boolean = ((hashOf(entry) ^ hash) & ComparedBits) == 0

  /** Let a list know its segments, which are in the same layers, or else in the list that `durable` finds. */
  def findSegments(row: Row, hash: Int, layers: Array[Slots], durable: Row.Get): Unit =
    if (row.segmentCount > 0) row.findSegments(hash,
      (hash, base, offset, length, into) => layers.exists(_.get(hash, base, offset, length, into)), durable)

  /** Finds no row. */
  val Nothing: Row.Get = (_, _, _, _, _) => false
}
