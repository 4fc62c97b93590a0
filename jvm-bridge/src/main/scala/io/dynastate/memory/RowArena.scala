package io.dynastate.memory

import io.dynastate.{DynastateException, ErrorKind}

/** Rows of bytes, one after the other, in pages. A row has an address: its position in units of 8 bytes, of pages of
 * nearly 256 KiB each. Only a page of one larger row is longer, and only the newest page shorter, until it is full.
 *
 * Nothing is written twice: a row that was replaced is garbage, and stays readable for those who have its page. `pages`
 * is a directory whose entries keep their rows; a page is freed or spilled in a copy of the directory. Not safe for
 * threads.
 *
 * With a share of a storage, a page that begins while too much is on the heap spills the oldest full pages: to disk,
 * where rows are read one by one. Rows that were moved have pages of their own, which are spilled first, since they did
 * not change for long.
 *
 * @param share of the storage of the executor's rows; null: all pages stay on the heap
 */
private[memory] final class RowArena private (private[this] var directory: Array[Array[Byte]],
    private[this] var ends: Array[Int], private[this] var dead: Array[Int], val share: StorageShare) {
  import RowArena._

  private[this] val pageBytes = if (share == null) PageBytes else share.pageBytes
  /** The pages that grow: of new rows, and of rows that were moved. */
  private[this] val tails = Array(-1, -1)
  private[this] var total, garbage, arrays = 0L
  /** No page before it is free. */
  private[this] var firstFree = 0
  /** The pages on disk, by number; null: there are none. */
  private[this] var pagesOnDisk: Array[DiskPage] = _
  /** The order in which full pages are spilled, with a share. */
  private[this] var turns = new Array[Long](directory.length)
  private[this] var lastTurn = 0L
  private[this] val lastBlocks = new LastBlocks

  def this(share: StorageShare = null) = this(new Array(1), new Array(1), new Array(1), share)

  /** The pages on the heap, by number. */
  def pages: Array[Array[Byte]] = directory

  def diskPages: Array[DiskPage] = pagesOnDisk

  /** Bytes of heap. */
  def heapBytes: Long = arrays

  /** Bytes of rows, live and garbage; and of garbage. */
  def bytes: Long = total

  def deadBytes: Long = garbage

  /** Make room for a row, which was moved or is new, and return its address. */
  def allocate(length: Int, isMoved: Boolean = false): Int = {
    val bytes = padded(length)
    val kind = if (isMoved && pagesOnDisk != null) Moved else New
    var tail = tails(kind)
    if (tail < 0 || ends(tail) + bytes.toLong > math.max(pageBytes, directory(tail).length)) {
      tail = newPage(bytes, kind)
      tails(kind) = tail
    } else if (ends(tail) + bytes > directory(tail).length) grow(tail, ends(tail) + bytes)
    val at = ends(tail)
    ends(tail) = at + bytes
    total += bytes
    addressOf(tail, at)
  }

  /** Point a cursor to the row of an address, or to a copy of it. */
  def read(address: Int, into: Row): Unit = {
    val page = directory(pageOf(address))
    if (page != null) into.pointTo(page, positionOf(address))
    else share.readLive(pagesOnDisk(pageOf(address)), positionOf(address), into)
  }

  /** The same for several. Rows on disk are read in the order in which they lie there, near ones together. */
  def readAll(addresses: Array[Int], into: Array[Row]): Unit = {
    // Their addresses and, below them, their numbers.
    val onDisk = new Array[Long](into.length)
    var count = 0
    into.indices.foreach { each =>
      val page = directory(pageOf(addresses(each)))
      if (page != null) into(each).pointTo(page, positionOf(addresses(each)))
      else {
        onDisk(count) = addresses(each).toLong << 32 | each
        count += 1
      }
    }
    java.util.Arrays.sort(onDisk, 0, count)
    val positions = new Array[Int](count)
    val rows = new Array[Row](count)
    var from = 0
    while (from < count) {
      val page = pageOf((onDisk(from) >>> 32).toInt)
      var until = from
      while (until < count && pageOf((onDisk(until) >>> 32).toInt) == page) {
        positions(until) = positionOf((onDisk(until) >>> 32).toInt)
        rows(until) = into(onDisk(until).toInt)
        until += 1
      }
      share.readLive(pagesOnDisk(page), positions, rows, from, until, lastBlocks)
      from = until
    }
  }

  /** Count the row of an address as garbage. */
  def free(address: Int, length: Int): Unit = {
    dead(pageOf(address)) += padded(length)
    garbage += padded(length)
  }

  /** The page with the most garbage for its size, for its rows to be moved; the next row begins another page. */
  def mostGarbage(): Int = {
    var victim = 0
    var most = -1.0
    var page = 0
    while (page < directory.length) {
      if (ends(page) > 0 && dead(page).toDouble / ends(page) > most) {
        victim = page
        most = dead(page).toDouble / ends(page)
      }
      page += 1
    }
    if (victim == tails(New)) tails(New) = -1
    if (victim == tails(Moved)) tails(Moved) = -1
    turns(victim) = Never
    victim
  }

  /** The bytes of a page, with their end in `endOf`. */
  def bytesOf(page: Int): Array[Byte] = if (directory(page) != null) directory(page) else pagesOnDisk(page).readAll()

  /** Where the rows of a page end. */
  def endOf(page: Int): Int = ends(page)

  /** Free a page without live rows. Returns the page on disk that it was; null: none. */
  def freePage(page: Int): DiskPage = {
    total -= ends(page)
    garbage -= dead(page)
    ends(page) = 0
    dead(page) = 0
    firstFree = math.min(firstFree, page)
    val onDisk = if (pagesOnDisk == null) null else pagesOnDisk(page)
    if (onDisk == null) removeFromHeap(page)
    else {
      // The number may be that of a page on the heap next, which whoever has the directories as they are must not find.
      directory = directory.clone()
      pagesOnDisk = pagesOnDisk.clone()
      pagesOnDisk(page) = null
    }
    onDisk
  }

  /** An independent arena with the same rows at the same addresses. */
  def copy(): RowArena = {
    require(share == null, "rows on disk have one owner")
    val copy = new RowArena(directory.clone(), ends.clone(), dead.clone(), null)
    copy.take(total, garbage, arrays)
    copy
  }

  /** Its rows as they are, to read only; valid for as long as it is wanted. */
  def view: RowArena = {
    require(share == null, "rows on disk have one owner")
    new RowArena(directory, ends, dead, null)
  }

  private def take(newTotal: Long, newGarbage: Long, newArrays: Long): Unit = {
    total = newTotal
    garbage = newGarbage
    arrays = newArrays
  }

  /** The first page of an arena, of a copy and after an evacuation begins small: it may stay so. */
  private def newPage(bytes: Int, kind: Int): Int = {
    var count = 0
    while (share != null && share.shouldSpill(count) && spillOldest()) count += 1
    var page = firstFree
    while (page < directory.length && (ends(page) > 0 || directory(page) != null)) page += 1
    if (page == PagesMax) throw new DynastateException(ErrorKind.Configuration,
      s"one column family of a partition may have at most ${PagesMax.toLong * PageBytes} bytes in memory; use " +
        "more shuffle partitions")
    if (page == directory.length) {
      directory = java.util.Arrays.copyOf(directory, page * 2)
      ends = java.util.Arrays.copyOf(ends, page * 2)
      dead = java.util.Arrays.copyOf(dead, page * 2)
      turns = java.util.Arrays.copyOf(turns, page * 2)
      if (pagesOnDisk != null) pagesOnDisk = java.util.Arrays.copyOf(pagesOnDisk, page * 2)
    }
    firstFree = page + 1
    directory(page) = new Array[Byte](if (tails(kind) < 0) math.max(FirstBytes, bytes) else math.max(pageBytes, bytes))
    countHeap(directory(page).length)
    lastTurn += 1
    turns(page) = if (kind == Moved) lastTurn - MovedAhead else lastTurn
    page
  }

  /** Spill the page whose turn it is; false: there is none, or no room. */
  private def spillOldest(): Boolean = {
    var oldest = -1
    var page = 0
    while (page < directory.length) {
      val isFull = directory(page) != null && page != tails(New) && page != tails(Moved) &&
        directory(page).length >= pageBytes
      if (isFull && turns(page) < Never && (oldest < 0 || turns(page) < turns(oldest))) oldest = page
      page += 1
    }
    val diskPage = if (oldest < 0) null else share.write(directory(oldest), ends(oldest))
    if (diskPage != null) {
      // Whoever has the directories as they are finds the page on the heap.
      pagesOnDisk = if (pagesOnDisk == null) new Array(directory.length) else pagesOnDisk.clone()
      pagesOnDisk(oldest) = diskPage
      removeFromHeap(oldest)
    }
    diskPage != null
  }

  private def removeFromHeap(page: Int): Unit = {
    countHeap(-directory(page).length)
    directory = directory.clone()
    directory(page) = null
  }

  private def grow(tail: Int, bytes: Int): Unit = {
    val size = math.min(pageBytes, math.max(bytes, 2 * directory(tail).length))
    countHeap(size - directory(tail).length)
    directory(tail) = java.util.Arrays.copyOf(directory(tail), size)
  }

  private def countHeap(bytes: Int): Unit = {
    arrays += bytes
    if (share != null) share.add(bytes)
  }
}

private[memory] object RowArena {
  private val PageBits = 18
  /** With the header of an array a power of two, so that pages fill a region of G1; and less than half of its smallest
   * region: a larger array takes regions of its own.
   */
  val PageBytes: Int = (1 << PageBits) - 16
  private val FirstBytes = 256
  /** Tails. */
  private val New = 0
  private val Moved = 1
  private val MovedAhead = 1L << 40
  /** The turn of a page whose rows are being moved. */
  private val Never = Long.MaxValue
  private val UnitBits = 3
  private val PositionBits = PageBits - UnitBits
  private val PagesMax = 1 << 32 - PositionBits - 1

  def pageOf(address: Int): Int = address >>> PositionBits

  def positionOf(address: Int): Int = (address & (1 << PositionBits) - 1) << UnitBits

  def addressOf(page: Int, position: Int): Int = page << PositionBits | position >>> UnitBits

  def padded(length: Int): Int = length + (1 << UnitBits) - 1 & -(1 << UnitBits)
}
