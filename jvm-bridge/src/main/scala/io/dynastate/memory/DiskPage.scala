package io.dynastate.memory

/** A page of rows in a file on local disk. What is read from it are copies. */
private[memory] final class DiskPage(file: RowFile, val number: Long, val extents: Array[Int], val length: Int,
    val checksums: Array[Int]) {
  import DiskPage._
  import RowFile.BlockBytes

  @volatile private[this] var releaseFlag = false

  /** Point a cursor to a copy of the row at a position; false: there is none, a page was read beside a change. */
  def read(position: Int, into: Row): Boolean = position + EncodedRow.HeaderBytes <= length && {
    val first = position / BlockBytes
    // Most rows are short, and lie in one block.
    val last = math.min(lastOf(first), lastOfShort(position))
    val buffer = buffers.get
    file.read(this, first, last, buffer, 0)
    val at = position - first * BlockBytes
    val available = math.min(length, (last + 1) * BlockBytes) - position
    val rest = length - position
    val keyEnd = EncodedRow.HeaderBytes + EncodedRow.keyLength(buffer, at)
    val headEnd = if (EncodedRow.isList(buffer, at)) keyEnd + EncodedRow.ListHeaderBytes else keyEnd
    // Beside a change, the lengths may be any numbers.
    keyEnd >= EncodedRow.HeaderBytes && headEnd >= keyEnd && headEnd <= rest && {
      val bytes =
        EncodedRow.length(if (headEnd <= available) buffer else blocks(first, (position + headEnd - 1) / BlockBytes),
          at)
      val isThere = bytes >= headEnd && bytes <= rest
      if (isThere && bytes <= available) into.pointTo(java.util.Arrays.copyOfRange(buffer, at, at + bytes), 0)
      else if (isThere) into.pointTo(blocks(first, (position + bytes - 1) / BlockBytes), at)
      isThere
    }
  }

  /** Point cursors to the rows at positions, of which the first is `from`, and those after it that lie near; they are
   * in order. Returns the number after the last one; `from`: a row is longer than it seemed. What was read last is not
   * read again, and what comes after it is read with what lies behind it.
   */
  def readNear(positions: Array[Int], into: Array[Row], from: Int, until: Int, last: LastBlocks): Int = {
    val next = pointTo(last, positions, into, from, until)
    if (next > from) next
    else {
      val first = positions(from) / BlockBytes
      var end = if (last.isBefore(this, first, GapBlocks)) first + AheadBlocks - 1 else first
      var each = from
      while (each < until && positions(each) / BlockBytes <= math.min(lastOf(first), end + GapBlocks)) {
        end = math.max(end, lastOfShort(positions(each)))
        each += 1
      }
      end = math.min(end, math.min(lastOf(first), (length - 1) / BlockBytes))
      last.set(this, first, blocks(first, end))
      pointTo(last, positions, into, from, until)
    }
  }

  private def pointTo(last: LastBlocks, positions: Array[Int], into: Array[Row], from: Int, until: Int): Int = {
    var each = from
    if (last.page eq this) while (each < until &&
      pointTo(last.bytes, positions(each) - last.first * BlockBytes, into(each))) each += 1
    each
  }

  /** Point a cursor to a row if all of it is there. */
  private def pointTo(bytes: Array[Byte], at: Int, into: Row): Boolean = {
    def ends(length: Long) = at + length <= bytes.length
    val isThere = at >= 0 && ends(EncodedRow.HeaderBytes) && {
      val key = EncodedRow.HeaderBytes.toLong + EncodedRow.keyLength(bytes, at)
      ends(if (EncodedRow.isList(bytes, at)) key + EncodedRow.ListHeaderBytes else key) &&
      ends(EncodedRow.length(bytes, at))
    }
    if (isThere) into.pointTo(bytes, at)
    isThere
  }

  /** The last block of a row at a position, if it is short. */
  private def lastOfShort(position: Int): Int = (math.min(length, position + ShortRowBytes) - 1) / BlockBytes

  /** Bytes of heap that remain, about. */
  def heapBytes: Long = 4L * (checksums.length + extents.length) + 96

  /** All bytes of the page. */
  def readAll(): Array[Byte] = blocks(0, (length - 1) / BlockBytes)

  /** Whether its place in the file may have been given to another page. */
  def isReleased: Boolean = releaseFlag

  def release(): Unit = {
    releaseFlag = true
    file.release(this)
  }

  private def blocks(first: Int, last: Int): Array[Byte] = {
    val bytes = new Array[Byte](math.min(length, (last + 1) * BlockBytes) - first * BlockBytes)
    var block = first
    while (block <= last) {
      val end = math.min(lastOf(block), last)
      file.read(this, block, end, bytes, (block - first) * BlockBytes)
      block = end + 1
    }
    bytes
  }

  /** The last block that can be read at once with a block. */
  private def lastOf(block: Int): Int = block / BlocksAtOnce * BlocksAtOnce + BlocksAtOnce - 1
}

private object DiskPage {
  /** A part of an extent. */
  private val BlocksAtOnce = 64
  private val ShortRowBytes = 256
  /** To read so many more takes about as long as another read. */
  private val GapBlocks = 4
  private val AheadBlocks = 16
  private val buffers: ThreadLocal[Array[Byte]] = ThreadLocal.withInitial(() => new Array[Byte](2 * RowFile.BlockBytes))
}

/** The blocks of a page that a table has read last. */
private[memory] final class LastBlocks {
  /** Null: none. */
  var page: DiskPage = _
  var first = 0
  var bytes: Array[Byte] = _

  def set(newPage: DiskPage, newFirst: Int, read: Array[Byte]): Unit = {
    page = newPage
    first = newFirst
    bytes = read
  }

  /** Whether a block of a page is the next one, or nearly. */
  def isBefore(of: DiskPage, block: Int, gap: Int): Boolean = (page eq of) && {
    val end = first + bytes.length / RowFile.BlockBytes
    block >= end - 1 && block <= end + gap
  }
}
