package io.dynastate.memory

import org.apache.spark.unsafe.Platform

/** A cursor on an encoded row. What it points to never changes, also after the table has changed. */
final class Row {
  private[this] var array: Array[Byte] = _
  private[this] var position = 0
  private[this] var parts: Array[Row] = _

  /** The array that the row lies in. */
  def bytes: Array[Byte] = array

  /** Where the row begins in the array. */
  def at: Int = position

  private[memory] def pointTo(bytes: Array[Byte], at: Int): Unit = {
    array = bytes
    position = at
    parts = null
  }

  private[memory] def pointTo(other: Row): Unit = {
    pointTo(other.bytes, other.at)
    parts = other.segments
  }

  /** A copy of a row without segments, with bytes of its own. */
  def copy: Row = Row.of(java.util.Arrays.copyOfRange(array, position, position + length))

  def keyLength: Int = EncodedRow.keyLength(array, position)

  /** The length of the key, with the bit of a segment's. */
  private[memory] def keyLengthAndKind: Int = EncodedRow.int(array, position)

  def keyOffset: Long = EncodedRow.keyOffset(position)

  /** Whether it may be a copy of a row on disk. */
  private[memory] def isCopy: Boolean = position == 0 && length == array.length

  /** A byte of the key. */
  private[memory] def keyByte(at: Int): Int = array(position + EncodedRow.HeaderBytes + at) & 0xff

  /** A copy of the key. */
  def key: Array[Byte] = java.util.Arrays.copyOfRange(array, position + EncodedRow.HeaderBytes,
    position + EncodedRow.HeaderBytes + keyLength)

  def isDelete: Boolean = EncodedRow.isDelete(array, position)

  def isList: Boolean = EncodedRow.isList(array, position)

  def isSegment: Boolean = EncodedRow.isSegment(array, position)

  def length: Int = EncodedRow.length(array, position)

  /** Where the value of a row of one value begins in the array, or the first of those that a list has itself. */
  def valueAt: Int =
    if (isList) entriesAt + EncodedRow.EntryHeaderBytes else position + EncodedRow.HeaderBytes + keyLength

  /** Bytes of that value. */
  def valueLength: Int = if (isList) EncodedRow.int(array, entriesAt) else EncodedRow.valueLength(array, position)

  def valueCount: Int = if (isList) EncodedRow.int(array, listAt + 8) else 1

  /** The value of a row of one value. */
  def value: StoredValue = new StoredValue(array, valueAt, valueLength)

  /** The values, oldest first. The segments of a list must be known. */
  def values: ValueCursor = new ValueCursor(this)

  /** The values that a list has itself. */
  private[memory] def newestValues: ValueCursor = {
    val newest = new Row
    newest.pointTo(array, position)
    new ValueCursor(newest)
  }

  def compareKeys(other: Row): Int = EncodedRow.compareKeys(array, position, other.bytes, other.at)

  /** The number of segments that a list has. */
  def segmentCount: Int = if (isList) EncodedRow.int(array, listAt + 16) else 0

  private[memory] def countInSegments: Int = if (isList) EncodedRow.int(array, listAt + 20) else 0

  /** The segments of a list, as far as they were looked for. */
  private[memory] def segments: Array[Row] = parts

  /** Let a list know its segments, which `get` finds as `RowTable.get` does. Those of a version that cannot be read are
   * not found: up to the last of them, the values are the first ones of the list that `durable` finds, which has no
   * segments.
   */
  private[memory] def findSegments(hash: Int, get: Row.Get, durable: Row.Get): Unit = {
    val segments = Array.tabulate(segmentCount) { number =>
      val segment = new Row
      val key = segmentKey(number)
      if (get(EncodedRow.segmentHash(hash, number), key, Platform.BYTE_ARRAY_OFFSET, key.length | EncodedRow.SegmentBit,
          segment)) segment
      else null
    }
    val gap = segments.lastIndexOf(null)
    parts = if (gap < 0) segments
    else {
      val rest = segments.drop(gap + 1)
      val whole = new Row
      if (!durable(hash, array, keyOffset, keyLength, whole))
        throw new IllegalStateException(s"segment $gap of a list is lost")
      Row.firstValues(whole, countInSegments - rest.map(_.entryCount).sum) +: rest
    }
  }

  /** The number of entries of a segment. */
  private def entryCount: Int = {
    val end = valueAt + valueLength
    var count = 0
    var next = valueAt
    while (next < end) {
      next += EncodedRow.EntryHeaderBytes + EncodedRow.int(array, next)
      count += 1
    }
    count
  }

  /** The key of a segment of this key. */
  private[memory] def segmentKey(number: Int): Array[Byte] = {
    val key = java.util.Arrays.copyOfRange(array, position + EncodedRow.HeaderBytes,
      position + EncodedRow.HeaderBytes + keyLength + 4)
    EncodedRow.putInt(key, key.length - 4, number)
    key
  }

  /** Bytes that the entries of a list take, and can take. */
  private[memory] def used: Int = EncodedRow.int(array, listAt + 4)

  private[memory] def space: Int = EncodedRow.int(array, listAt)

  private[memory] def known: Int = EncodedRow.int(array, listAt + 12)

  private[memory] def entriesAt: Int = listAt + EncodedRow.ListHeaderBytes

  /** Bytes of the values that the row has itself, as entries. */
  private[memory] def entriesLength: Int = if (isList) used else EncodedRow.EntryHeaderBytes + valueLength

  private[this] def listAt: Int = position + EncodedRow.HeaderBytes + keyLength

  /** Write the values that the row has itself, as entries. */
  private[memory] def copyEntries(into: Array[Byte], to: Int): Unit =
    if (isList) System.arraycopy(array, entriesAt, into, to, used)
    else {
      EncodedRow.putInt(into, to, valueLength)
      System.arraycopy(array, valueAt, into, to + EncodedRow.EntryHeaderBytes, valueLength)
    }

  /** Make a list of a record, with room for `space` bytes of entries, after others that are in segments. */
  private[memory] def beginList(space: Int, total: Int, segments: Int, countInSegments: Int): Unit = {
    EncodedRow.putInt(array, listAt, space)
    EncodedRow.putInt(array, listAt + 4, 0)
    EncodedRow.putInt(array, listAt + 8, countInSegments)
    EncodedRow.putInt(array, listAt + 12, total)
    EncodedRow.putInt(array, listAt + 16, segments)
    EncodedRow.putInt(array, listAt + 20, countInSegments)
  }

  /** Add the values that another row has itself to a list, which has the space. */
  private[memory] def addEntries(of: Row): Unit = {
    of.copyEntries(array, entriesAt + used)
    added(of.entriesLength, of.valueCount - of.countInSegments)
  }

  /** Add the values of the segments of another list to a list, which has the space. */
  private[memory] def addSegments(of: Row): Unit = {
    of.segments.foreach { segment =>
      System.arraycopy(segment.bytes, segment.valueAt, array, entriesAt + used, segment.valueLength)
      added(segment.valueLength, 0)
    }
    added(0, of.countInSegments)
  }

  /** Add a value to a list, which has the space. */
  private[memory] def addEntry(base: AnyRef, offset: Long, length: Int): Unit = {
    val to = entriesAt + used
    EncodedRow.putInt(array, to, length)
    Platform.copyMemory(base, offset, array, EncodedRow.offset(to + EncodedRow.EntryHeaderBytes), length)
    added(EncodedRow.EntryHeaderBytes + length, 1)
  }

  private def added(bytes: Int, values: Int): Unit = {
    EncodedRow.putInt(array, listAt + 4, used + bytes)
    EncodedRow.putInt(array, listAt + 8, EncodedRow.int(array, listAt + 8) + values)
  }
}

object Row {
  /** Points a cursor to the row of a key, as `RowTable.get` does. */
  private[memory] type Get = (Int, AnyRef, Long, Int, Row) => Boolean

  /** A row whose value is the first entries of a row without segments. */
  private def firstValues(of: Row, count: Int): Row = {
    val entries = new Array[Byte](of.entriesLength)
    of.copyEntries(entries, 0)
    var end = 0
    (0 until count).foreach(_ => end += EncodedRow.EntryHeaderBytes + EncodedRow.int(entries, end))
    val bytes = new Array[Byte](EncodedRow.HeaderBytes + end)
    EncodedRow.writeKey(bytes, 0, end, entries, Platform.BYTE_ARRAY_OFFSET, 0)
    System.arraycopy(entries, 0, bytes, EncodedRow.HeaderBytes, end)
    Row.of(bytes)
  }

  /** A cursor on the row at the beginning of an array. */
  def of(bytes: Array[Byte]): Row = {
    val row = new Row
    row.pointTo(bytes, 0)
    row
  }

  /** A row with a key and without value, to search by key: it is a delete marker. */
  def probe(key: Array[Byte]): Row = {
    val bytes = new Array[Byte](EncodedRow.HeaderBytes + key.length)
    EncodedRow.writeKey(bytes, 0, EncodedRow.DeleteMarker, key, Platform.BYTE_ARRAY_OFFSET, key.length)
    of(bytes)
  }
}
