package io.dynastate.memory

import java.nio.ByteOrder

import io.dynastate.{DynastateException, ErrorKind}

import org.apache.spark.unsafe.Platform
import org.apache.spark.unsafe.array.ByteArrayMethods
import org.apache.spark.unsafe.hash.Murmur3_x86_32

/** A row as bytes within an array, from `at` on. A row of one value, and a removed key, are also sent and stored like
 * this, after a tag of two bytes (docs/storage-format.md, "Changes"); the values of a list are sent and stored as a
 * record each.
 *
 * {{{
 * row     := key_length:u32  value_length:i32  key  value             little-endian; value_length -1: removed
 * list    := key_length:u32  -2:i32  key  space:i32  used:i32  count:i32  known:i32  segments:i32
 *            count_in_segments:i32  entry*
 * segment := key_length + 2^30:u32  value_length:i32  key  number:i32  entry*
 * entry   := value_length:i32  value
 * }}}
 *
 * A list has its newest values itself; they take `used` bytes, and may grow to `space`. Those before them are in
 * segments, rows of their own, so that an append to a long list does not copy it. Of a change, `known` is the number of
 * its first values that were there before it, or `Begun`: it appends to a key that had no value.
 */
object EncodedRow {
  val HeaderBytes = 8
  val TagBytes = 2
  /** value_length of a removed key. */
  val DeleteMarker: Int = -1
  /** value_length of a list. */
  val ListMarker: Int = -2
  /** `known` of a list that begins with an append. */
  val Begun: Int = -1
  val ListHeaderBytes = 24
  /** In a length of a key: that of a segment, whose key is followed by its number. */
  val SegmentBit: Int = 1 << 30
  /** An append puts the values of a list into a segment, if they are longer. */
  val SegmentBytesMin = 4096
  val EntryHeaderBytes = 4
  /** No record may be larger: the limit of docs/storage-format.md. */
  val RecordBytesMax: Int = 64 * 1024 * 1024
  /** No list may be larger: an array holds it. */
  val ListBytesMax: Int = 1 << 30

  // Encoded rows are little-endian, as is every platform of Spark's UnsafeRow, and Platform reads natively.
  require(ByteOrder.nativeOrder() == ByteOrder.LITTLE_ENDIAN, "dynastate needs a little-endian machine")

  def keyLength(bytes: Array[Byte], at: Int): Int = int(bytes, at) & ~SegmentBit

  def valueLength(bytes: Array[Byte], at: Int): Int = int(bytes, at + 4)

  /** Where the key begins, as an address within the array. */
  def keyOffset(at: Int): Long = offset(at + HeaderBytes)

  def isDelete(bytes: Array[Byte], at: Int): Boolean = valueLength(bytes, at) == DeleteMarker

  def isList(bytes: Array[Byte], at: Int): Boolean = valueLength(bytes, at) == ListMarker

  /** Bytes of a row, with the space of a list. */
  def length(bytes: Array[Byte], at: Int): Int = {
    val value = valueLength(bytes, at)
    val keyEnd = HeaderBytes + keyLength(bytes, at)
    if (value >= 0) keyEnd + value
    else if (value == DeleteMarker) keyEnd
    else keyEnd + ListHeaderBytes + int(bytes, at + keyEnd)
  }

  /** MurmurHash3 x86 32 bit, seed 0; stored in `hash_min` and `hash_max` of parts. */
  def hash(base: AnyRef, offset: Long, length: Int): Int = Murmur3_x86_32.hashUnsafeBytes2(base, offset, length, 0)

  def hash(bytes: Array[Byte], at: Int): Int = {
    val length = keyLength(bytes, at)
    if (isSegment(bytes, at))
      segmentHash(hash(bytes, keyOffset(at), length - 4), int(bytes, at + HeaderBytes + length - 4))
    else hash(bytes, keyOffset(at), length)
  }

  /** The hash of a segment is in the bucket of its key. */
  def segmentHash(keyHash: Int, number: Int): Int = {
    val cell = -1 << 32 - ChangedBuckets.HashBits
    keyHash & cell | (keyHash + (number + 1) * 0x9e3779b1) & ~cell
  }

  def isSegment(bytes: Array[Byte], at: Int): Boolean = (int(bytes, at) & SegmentBit) != 0

  /** Whether a row has a key of a length, which has the bit of a segment's; `at` may be past the end of the array. */
  def hasKey(bytes: Array[Byte], at: Int, base: AnyRef, offset: Long, length: Int): Boolean = {
    val keyBytes = length & ~SegmentBit
    at + HeaderBytes + keyBytes <= bytes.length && int(bytes, at) == length &&
    ByteArrayMethods.arrayEquals(bytes, keyOffset(at), base, offset, keyBytes)
  }

  /** Order of two rows by key, as unsigned bytes: the order of RocksDB, and of the encoders of Spark's range scans. */
  def compareKeys(bytes: Array[Byte], at: Int, otherBytes: Array[Byte], otherAt: Int): Int =
    java.util.Arrays.compareUnsigned(bytes, at + HeaderBytes, at + HeaderBytes + keyLength(bytes, at), otherBytes,
      otherAt + HeaderBytes, otherAt + HeaderBytes + keyLength(otherBytes, otherAt))

  /** Bytes of a row of one value. An error if there may be no such row. */
  def lengthOfPut(keyLength: Int, valueLength: Int): Int = {
    val bytes = HeaderBytes.toLong + keyLength + valueLength
    if (bytes > RecordBytesMax - TagBytes) throw new DynastateException(ErrorKind.Configuration,
      s"a row of state may have at most $RecordBytesMax bytes, key and value together bytes=$bytes")
    bytes.toInt
  }

  /** Bytes of a list whose entries have room for `space` bytes. */
  def lengthOfList(keyLength: Int, space: Long): Int = {
    val bytes = HeaderBytes.toLong + keyLength + ListHeaderBytes + space
    if (bytes > ListBytesMax) throw new DynastateException(ErrorKind.Configuration,
      s"the values of one key may have at most $ListBytesMax bytes together bytes=$bytes")
    bytes.toInt
  }

  /** Write the lengths and the key of a row into an array. */
  def writeKey(bytes: Array[Byte], at: Int, valueLength: Int, keyBase: AnyRef, keyOffset: Long,
      keyLength: Int): Unit = {
    putInt(bytes, at, keyLength)
    putInt(bytes, at + 4, valueLength)
    Platform.copyMemory(keyBase, keyOffset, bytes, EncodedRow.keyOffset(at), keyLength & ~SegmentBit)
  }

  private[memory] def int(bytes: Array[Byte], at: Int): Int = Platform.getInt(bytes, offset(at))

  private[memory] def putInt(bytes: Array[Byte], at: Int, value: Int): Unit = Platform.putInt(bytes, offset(at), value)

  private[memory] def offset(at: Int): Long = Platform.BYTE_ARRAY_OFFSET + at.toLong
}
