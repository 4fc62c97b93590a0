package io.dynastate.memory

/** The rows of a table in the order of their keys, as unsigned bytes: their addresses, in blocks. Each block but the
 * first has a bound, a key that is not after its own and after those of the blocks before it. The keys of a block begin
 * with the same bytes; the next ones of each are its mark, so that nearly every place is found without reading rows,
 * which may be on disk. Not safe for threads.
 */
final class KeyOrder private (arena: RowArena, private[this] var blocks: Array[KeyOrder.Block],
    private[this] var count: Int) {
  import KeyOrder._

  private[this] val other = new Row
  /** What was found: a row, or its place, and after `narrow` the places up to `foundEnd` of which one is that. */
  private[this] var foundBlock, foundAt, foundEnd = 0
  /** The view since the last change; null: there is none. It shares blocks that have another turn. */
  private[this] var lastView: KeyOrder = _
  private[this] var turn = 0

  def heapBytes: Long = blocks.length * 4L + count * BlockBytes

  /** Add a row with a new key. */
  def add(row: Row, address: Int): Unit = {
    if (count == 0) insertBlock(0, new Block(Row.probe(row.key), row.keyLength, turn))
    findMark(row)
    findAmongAlike(row)
    if (own(foundBlock).size == BlockRows) split(foundBlock)
    blocks(foundBlock).add(foundAt, row, address)
  }

  /** Set the address of a key that has a row. */
  def replace(row: Row, oldAddress: Int, address: Int): Unit = {
    findAddress(row, oldAddress)
    own(foundBlock).addresses(foundAt) = address
  }

  /** Remove the row of a key that has one. */
  def remove(row: Row, address: Int): Unit = {
    findAddress(row, address)
    val block = own(foundBlock)
    block.remove(foundAt)
    if (block.size == 0) {
      count -= 1
      System.arraycopy(blocks, foundBlock + 1, blocks, foundBlock, count - foundBlock)
      blocks(count) = null
    }
  }

  /** The same rows in the same order, without later changes. Of rows on the heap. It takes no time for each row; the
   * next change of a block copies it.
   */
  def view: KeyOrder = {
    if (lastView == null) {
      lastView = new KeyOrder(arena.view, blocks.clone(), count)
      turn += 1
    }
    lastView
  }

  /** A block to change. */
  private def own(number: Int): Block = {
    lastView = null
    if (blocks(number).turn != turn) blocks(number) = blocks(number).copy(turn)
    blocks(number)
  }

  /** The rows from a key (null: the first) up to another, exclusive (null: the end). Valid until the next change.
   *
   * @param atOnce rows on disk that are read at once: as many as are wanted
   */
  def range(from: Row, inclusive: Boolean, to: Row, atOnce: Int = RowTable.BlockRows): RangeCursor = {
    var endBlock = count
    var endAt, sureAt = 0
    if (to != null && count > 0) {
      narrow(to)
      endBlock = foundBlock
      endAt = foundEnd
      sureAt = foundAt
    }
    if (from == null || count == 0) {
      foundBlock = 0
      foundAt = 0
      foundEnd = 0
    } else narrow(from)
    new RangeCursor(
      foundBlock, foundAt, endBlock, endAt, sureAt, if (foundAt == foundEnd) null else from, inclusive, to, atOnce)
  }

  /** The rows of a range, and a few around it, which are passed.
   *
   * @param from the key before which the first rows may be; null: none is
   * @param sureAt the place in the last block from which on rows may be after the range
   */
  final class RangeCursor private[KeyOrder] (private[this] var block: Int, private[this] var at: Int,
      private[this] var endBlock: Int, private[this] var endAt: Int, sureAt: Int, private[this] var from: Row,
      inclusive: Boolean, to: Row, atOnce: Int) {
    /** Rows that were read at once; those from `sure` on may be after the range. Null: those on the heap are not. */
    private[this] var rows: Array[Row] = _
    private[this] var read, next, sure = 0

    def advance(into: Row): Boolean = {
      while (readRow(into)) {
        if (from == null || !isBefore(into)) {
          from = null
          if (next <= sure || into.compareKeys(to) < 0) return true
          end()
        }
      }
      false
    }

    private def isBefore(row: Row): Boolean = {
      val order = row.compareKeys(from)
      order < 0 || order == 0 && !inclusive
    }

    private def end(): Unit = {
      endBlock = block
      endAt = at
      read = next
    }

    private def readRow(into: Row): Boolean =
      if (arena.diskPages == null) hasAddress && {
        arena.read(blocks(block).addresses(at), into)
        sure = if (isSure) 1 else 0
        next = 1
        at += 1
        true
      }
      else {
        if (next == read) readNext()
        next < read && {
          into.pointTo(rows(next))
          next += 1
          true
        }
      }

    /** Whether the next row is before the end, which was found by marks alone. */
    private def isSure: Boolean = to == null || block < endBlock || at < sureAt

    private def hasAddress: Boolean = {
      while (block < endBlock && at >= blocks(block).size) {
        block += 1
        at = 0
      }
      block < endBlock || block == endBlock && at < endAt
    }

    private def readNext(): Unit = {
      val addresses = new Array[Int](atOnce)
      read = 0
      next = 0
      sure = 0
      while (read < atOnce && hasAddress) {
        addresses(read) = blocks(block).addresses(at)
        if (isSure) sure += 1
        at += 1
        read += 1
      }
      rows = Array.fill(read)(new Row)
      arena.readAll(addresses, rows)
    }
  }

  /** Find the row of a key and an address, which is there. */
  private def findAddress(row: Row, address: Int): Unit = {
    foundBlock = blockOf(row)
    foundAt = 0
    while (blocks(foundBlock).addresses(foundAt) != address) foundAt += 1
  }

  /** The last block whose bound is not after a key. */
  private def blockOf(row: Row): Int = {
    var low = 0
    var high = count - 1
    while (low < high) {
      val middle = (low + high + 1) >>> 1
      if (blocks(middle).bound.compareKeys(row) <= 0) low = middle else high = middle - 1
    }
    low
  }

  /** Find a few places of which one is that of a key. Rows are read only where there are more. */
  private def narrow(row: Row): Unit = {
    findMark(row)
    if (foundEnd - foundAt > FewRows) foundEnd = if (findAmongAlike(row)) foundAt + 1 else foundAt
  }

  /** Find the row of a key among those with its mark; false: there is none. */
  private def findAmongAlike(row: Row): Boolean = {
    while (foundAt < foundEnd) {
      val middle = (foundAt + foundEnd) >>> 1
      arena.read(blocks(foundBlock).addresses(middle), other)
      val order = other.compareKeys(row)
      if (order == 0) {
        foundAt = middle
        return true
      }
      if (order < 0) foundAt = middle + 1 else foundEnd = middle
    }
    false
  }

  /** Find the rows with the mark of a key, or the place for one. */
  private def findMark(row: Row): Unit = {
    foundBlock = blockOf(row)
    val block = blocks(foundBlock)
    val side = block.sideOf(row)
    if (side != 0) {
      foundAt = if (side > 0) block.size else 0
      foundEnd = foundAt
    } else {
      val target = mark(row, block.skip)
      foundAt = 0
      foundEnd = block.size
      while (foundAt < foundEnd) {
        val middle = (foundAt + foundEnd) >>> 1
        if (java.lang.Long.compareUnsigned(block.marks(middle), target) < 0) foundAt = middle + 1 else foundEnd = middle
      }
      while (foundEnd < block.size && block.marks(foundEnd) == target) foundEnd += 1
    }
  }

  /** Split a full block, and find the same place in its half. */
  private def split(number: Int): Unit = {
    val lower = blocks(number)
    val half = BlockRows / 2
    arena.read(lower.addresses(half), other)
    val upper = new Block(Row.probe(other.key), lower.skip, turn)
    lower.moveTo(upper, half)
    insertBlock(number + 1, upper)
    if (lower.areMarksAlike) markAgain(lower)
    if (upper.areMarksAlike) markAgain(upper)
    if (foundAt > half) {
      foundBlock += 1
      foundAt -= half
    }
  }

  /** Make marks that tell more of the keys of a block apart. */
  private def markAgain(block: Block): Unit = {
    val rows = Array.fill(block.size)(new Row)
    arena.readAll(block.addresses, rows)
    block.mark(rows)
  }

  private def insertBlock(at: Int, block: Block): Unit = {
    if (count == blocks.length) blocks = java.util.Arrays.copyOf(blocks, count * 2)
    System.arraycopy(blocks, at, blocks, at + 1, count - at)
    blocks(at) = block
    count += 1
  }
}

private[memory] object KeyOrder {
  private val BlockRows = 256
  /** Rows that a scan reads in vain, at most, rather than look for its first or last row. */
  private val FewRows = 8
  /** How full blocks are at first. */
  private val BlockRowsAtFirst = 192
  /** Heap of a block with its bound, about. */
  private val BlockBytes = BlockRows * 12L + 160

  /** No address of a key: no arena has so many. */
  private val OnHeap = -1
  /** Bytes of a key in a mark. The lowest byte is their number, or one more: the key is longer. */
  private val MarkBytes = 7

  /** Neighbouring rows. All keys, and the bound, begin with the same `skip` bytes. */
  private final class Block(var bound: Row, var skip: Int, val turn: Int) {
    val addresses = new Array[Int](BlockRows)
    val marks = new Array[Long](BlockRows)
    var size = 0

    def copy(newTurn: Int): Block = {
      val copy = new Block(bound, skip, newTurn)
      System.arraycopy(addresses, 0, copy.addresses, 0, size)
      System.arraycopy(marks, 0, copy.marks, 0, size)
      copy.size = size
      copy
    }

    /** Add a row at a place. The first one may be before the bound: `mark` has set it, for the rows that there were. */
    def add(at: Int, row: Row, address: Int): Unit = {
      val same = commonBytes(row, bound, skip)
      if (same < skip) {
        (0 until size).foreach(each => marks(each) = lengthened(marks(each), same))
        skip = same
      }
      System.arraycopy(addresses, at, addresses, at + 1, size - at)
      System.arraycopy(marks, at, marks, at + 1, size - at)
      addresses(at) = address
      marks(at) = KeyOrder.mark(row, skip)
      size += 1
      if (at == 0 && row.compareKeys(bound) < 0) bound = Row.probe(row.key)
    }

    def remove(at: Int): Unit = {
      size -= 1
      System.arraycopy(addresses, at + 1, addresses, at, size - at)
      System.arraycopy(marks, at + 1, marks, at, size - at)
    }

    /** Move rows to an empty block. */
    def moveTo(other: Block, from: Int): Unit = {
      System.arraycopy(addresses, from, other.addresses, 0, size - from)
      System.arraycopy(marks, from, other.marks, 0, size - from)
      other.size = size - from
      size = from
    }

    /** Where a key is by the bytes that all have: before all others (negative), after (positive), or between them. */
    def sideOf(row: Row): Int = {
      val same = commonBytes(row, bound, skip)
      if (same == skip) 0
      else if (same == row.keyLength) -1
      else Integer.compareUnsigned(row.keyByte(same), bound.keyByte(same))
    }

    /** Whether so many bytes of all marks are the same that others would tell more keys apart. */
    def areMarksAlike: Boolean = (marks(0) ^ marks(size - 1)) >>> 32 == 0

    /** Make bound and marks of all rows. */
    def mark(rows: Array[Row]): Unit = {
      bound = Row.probe(rows(0).key)
      skip = commonBytes(rows(0), rows(size - 1), Int.MaxValue)
      (0 until size).foreach(each => marks(each) = KeyOrder.mark(rows(each), skip))
    }

    /** The mark for another number of bytes to skip, which is less. */
    private def lengthened(mark: Long, newSkip: Int): Long = {
      val more = skip - newSkip
      val length = math.min(MarkBytes + 1L, (mark & 0xff) + more)
      val tail = if (more >= MarkBytes) 0L else mark >>> 8 * more
      (0 until math.min(more, MarkBytes)).foldLeft(tail & ~0xffL)((made, each) =>
        made | bound.keyByte(newSkip + each).toLong << 56 - 8 * each) | length
    }
  }

  /** The bytes of a key after some, and their number. */
  private def mark(row: Row, skip: Int): Long = {
    val bytesLeft = math.min(MarkBytes + 1, row.keyLength - skip)
    var result = bytesLeft.toLong
    var each = 0
    while (each < bytesLeft && each < MarkBytes) {
      result |= row.keyByte(skip + each).toLong << 56 - 8 * each
      each += 1
    }
    result
  }

  /** Whether there are more bytes of the key than a mark has. */
  private def isCut(mark: Long): Boolean = (mark & 0xff) > MarkBytes

  private def commonBytes(one: Row, other: Row, most: Int): Int = {
    val length = math.min(most, math.min(one.keyLength, other.keyLength))
    val from = one.at + EncodedRow.HeaderBytes
    val otherFrom = other.at + EncodedRow.HeaderBytes
    val index = java.util.Arrays.mismatch(one.bytes, from, from + length, other.bytes, otherFrom, otherFrom + length)
    if (index < 0) length else index
  }

  /** The order of all rows of a table. Takes heap for all keys of rows on disk, until it is made. */
  def of(slots: Slots, arena: RowArena): KeyOrder = {
    val one, other = new Row
    val keys = new RowArena
    // The address of the row and, above it, that of its key in `keys`, or `OnHeap`.
    val rows = new java.util.ArrayList[java.lang.Long]
    slots.retain()
    val all = new SlotIterator(Array(slots), showAll = true)
    while (all.advance()) if (!all.row.isSegment) {
      val key = if (slots.isOnDisk(all.slot)) copyKey(all.row, keys, one) else OnHeap
      rows.add(key.toLong << 32 | Integer.toUnsignedLong(slots.addressAt(all.slot)))
    }
    def read(row: Long, into: Row): Unit = {
      val key = (row >>> 32).toInt
      if (key == OnHeap) slots.readRow(row.toInt, into) else keys.read(key, into)
    }
    rows.sort { (a, b) =>
      read(a, one)
      read(b, other)
      one.compareKeys(other)
    }
    val count = (rows.size + BlockRowsAtFirst - 1) / BlockRowsAtFirst
    val blocks = new Array[Block](math.max(1, count))
    val some = Array.fill(BlockRowsAtFirst)(new Row)
    (0 until count).foreach { number =>
      val first = number * BlockRowsAtFirst
      val block = new Block(null, 0, 0)
      block.size = math.min(BlockRowsAtFirst, rows.size - first)
      (0 until block.size).foreach { at =>
        block.addresses(at) = rows.get(first + at).toInt
        read(rows.get(first + at), some(at))
      }
      block.mark(some)
      blocks(number) = block
    }
    new KeyOrder(arena, blocks, count)
  }

  /** Slots that are not free, in the order of their keys. */
  def slotsInOrder(slots: Slots): Array[Int] = {
    val one, other = new Row
    val positions = (0 until slots.capacity).iterator.filterNot(slots.isFree).toArray
    var skip = Int.MaxValue
    if (positions.nonEmpty) slots.read(positions(0), one)
    positions.foreach { slot =>
      slots.read(slot, other)
      skip = commonBytes(one, other, skip)
    }
    val entries = positions.map { slot =>
      slots.read(slot, other)
      new MarkedSlot(mark(other, skip), slot)
    }
    java.util.Arrays.sort(
      entries,
      (a: MarkedSlot, b: MarkedSlot) => {
        val order = java.lang.Long.compareUnsigned(a.mark, b.mark)
        if (order != 0 || !isCut(a.mark)) order
        else {
          slots.read(a.slot, one)
          slots.read(b.slot, other)
          one.compareKeys(other)
        }
      })
    entries.map(_.slot)
  }

  private final class MarkedSlot(val mark: Long, val slot: Int)

  private def copyKey(row: Row, to: RowArena, into: Row): Int = {
    val length = EncodedRow.HeaderBytes + row.keyLength
    val address = to.allocate(length)
    to.read(address, into)
    System.arraycopy(row.bytes, row.at, into.bytes, into.at, length)
    address
  }
}
