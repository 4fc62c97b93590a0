package io.dynastate.memory

import java.nio.ByteOrder

import io.dynastate.{DynastateException, ErrorKind}

import org.apache.spark.unsafe.Platform
import org.apache.spark.unsafe.array.ByteArrayMethods
import org.apache.spark.unsafe.hash.Murmur3_x86_32

/**
 * A row in memory: one immutable byte array, which is also sent and stored, after a tag of two bytes (docs/storage-format.md,
 * "Changes").
 *
 * {{{
 * record      := tag:u16 encoded_row
 * encoded_row := key_length:u32  value_length:i32  key  value        little-endian
 * }}}
 *
 * One array a row takes about half of what a key row and a value row with their objects take, and can be returned without a copy, because
 * it is never written again.
 */
object EncodedRow {
  val HeaderBytes = 8
  val TagBytes = 2
  /** value_length of a removed key. */
  val DeleteMarker: Int = -1
  /** No record may be larger: the limit of docs/storage-format.md. */
  val RecordBytesMax: Int = 64 * 1024 * 1024
  /** Where the key begins, as an address within the array. */
  val KeyOffset: Long = Platform.BYTE_ARRAY_OFFSET + HeaderBytes

  // Encoded rows are little-endian, as is every platform of Spark's UnsafeRow, and Platform reads natively.
  require(ByteOrder.nativeOrder() == ByteOrder.LITTLE_ENDIAN, "dynastate needs a little-endian machine")

  def keyLength(encoded: Array[Byte]): Int = Platform.getInt(encoded, Platform.BYTE_ARRAY_OFFSET)

  def valueLength(encoded: Array[Byte]): Int = Platform.getInt(encoded, Platform.BYTE_ARRAY_OFFSET + 4)

  def valueOffset(encoded: Array[Byte]): Long = KeyOffset + keyLength(encoded)

  /** A copy of the value. */
  def value(encoded: Array[Byte]): Array[Byte] = java.util.Arrays.copyOfRange(encoded, HeaderBytes + keyLength(encoded), encoded.length)

  def isDelete(encoded: Array[Byte]): Boolean = valueLength(encoded) == DeleteMarker

  /** MurmurHash3 x86 32 bit, seed 0; stored in `hash_min` and `hash_max` of parts. */
  def hash(base: AnyRef, offset: Long, length: Int): Int = Murmur3_x86_32.hashUnsafeBytes2(base, offset, length, 0)

  def hash(encoded: Array[Byte]): Int = hash(encoded, KeyOffset, keyLength(encoded))

  def hasKey(encoded: Array[Byte], base: AnyRef, offset: Long, length: Int): Boolean =
    keyLength(encoded) == length && ByteArrayMethods.arrayEquals(encoded, KeyOffset, base, offset, length)

  /** An encoded row with copies of a key and a value. */
  def put(
      keyBase: AnyRef, keyOffset: Long, keyLength: Int,
      valueBase: AnyRef, valueOffset: Long, valueLength: Int): Array[Byte] = {
    val encoded = allocate(keyLength, valueLength, valueLength)
    Platform.copyMemory(keyBase, keyOffset, encoded, KeyOffset, keyLength)
    Platform.copyMemory(valueBase, valueOffset, encoded, KeyOffset + keyLength, valueLength)
    encoded
  }

  /** A delete marker of a key. */
  def delete(keyBase: AnyRef, keyOffset: Long, keyLength: Int): Array[Byte] = {
    val encoded = allocate(keyLength, 0, DeleteMarker)
    Platform.copyMemory(keyBase, keyOffset, encoded, KeyOffset, keyLength)
    encoded
  }

  /** A copy of a value, for the list of a key. */
  def copyOf(keyLength: Int, valueBase: AnyRef, valueOffset: Long, valueLength: Int): Array[Byte] = {
    refuseLarge(HeaderBytes.toLong + keyLength + valueLength)
    val value = new Array[Byte](valueLength)
    Platform.copyMemory(valueBase, valueOffset, value, Platform.BYTE_ARRAY_OFFSET, valueLength)
    value
  }

  /** Write the header of an encoded row into an array. */
  def writeHeader(into: Array[Byte], at: Int, keyLength: Int, valueLength: Int): Unit = {
    Platform.putInt(into, Platform.BYTE_ARRAY_OFFSET + at, keyLength)
    Platform.putInt(into, Platform.BYTE_ARRAY_OFFSET + at + 4, valueLength)
  }

  private def allocate(keyLength: Int, valueBytes: Int, valueLength: Int): Array[Byte] = {
    val bytes = HeaderBytes.toLong + keyLength + valueBytes
    refuseLarge(bytes)
    val encoded = new Array[Byte](bytes.toInt)
    writeHeader(encoded, 0, keyLength, valueLength)
    encoded
  }

  private def refuseLarge(bytes: Long): Unit = if (bytes > RecordBytesMax - TagBytes) {
    throw new DynastateException(ErrorKind.Configuration,
      s"a row of state may have at most $RecordBytesMax bytes, key and value together bytes=$bytes")
  }

  /** Bytes of heap of an encoded row: header of the array, contents, rounded to 8. */
  def heapBytes(encoded: Array[Byte]): Int = (16 + encoded.length + 7) & ~7
}
