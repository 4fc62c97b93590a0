package io.dynastate.core

import java.nio.{ByteBuffer, ByteOrder}
import java.util.UUID

import org.apache.spark.unsafe.Platform
import org.apache.spark.unsafe.array.ByteArrayMethods
import org.apache.spark.unsafe.hash.Murmur3_x86_32

/**
 * A row as it lies in memory: one immutable byte array, which is also what travels over the bridge and is stored, after a
 * tag of two bytes (docs/storage-format.md, "Changes").
 *
 * {{{
 * record := tag:u16 entry
 * entry  := key_length:u32  value_length:i32  key  value        little-endian
 * }}}
 *
 * One array a row costs about half of what a key row and a value row with their objects cost, and can be handed out
 * without a copy, because nobody ever writes into it again.
 */
object Entry {
  val HeaderBytes = 8
  val TagBytes = 2
  /** value_length of a removed key. */
  val DeleteMarker: Int = -1
  /** No record may be larger: the limit of docs/storage-format.md. */
  val RecordBytesMax: Int = 64 * 1024 * 1024
  /** Where the key begins, as an address within the array. */
  val KeyOffset: Long = Platform.BYTE_ARRAY_OFFSET + HeaderBytes

  // Entries are little-endian; every platform that Spark's UnsafeRow is used on is so too, and Platform reads natively.
  require(ByteOrder.nativeOrder() == ByteOrder.LITTLE_ENDIAN, "dynastate needs a little-endian machine")

  def keyLength(entry: Array[Byte]): Int = Platform.getInt(entry, Platform.BYTE_ARRAY_OFFSET)

  def valueLength(entry: Array[Byte]): Int = Platform.getInt(entry, Platform.BYTE_ARRAY_OFFSET + 4)

  def valueOffset(entry: Array[Byte]): Long = KeyOffset + keyLength(entry)

  def isDelete(entry: Array[Byte]): Boolean = valueLength(entry) == DeleteMarker

  /** MurmurHash3 x86 32 bit, seed 0; stored in `hash_min` and `hash_max` of parts. */
  def hash(base: AnyRef, offset: Long, length: Int): Int = Murmur3_x86_32.hashUnsafeBytes2(base, offset, length, 0)

  def hash(entry: Array[Byte]): Int = hash(entry, KeyOffset, keyLength(entry))

  def hasKey(entry: Array[Byte], base: AnyRef, offset: Long, length: Int): Boolean =
    keyLength(entry) == length && ByteArrayMethods.arrayEquals(entry, KeyOffset, base, offset, length)

  /** An entry that holds copies of a key and a value. */
  def put(
      keyBase: AnyRef, keyOffset: Long, keyLength: Int,
      valueBase: AnyRef, valueOffset: Long, valueLength: Int): Array[Byte] = {
    val entry = allocate(keyLength, valueLength, valueLength)
    Platform.copyMemory(keyBase, keyOffset, entry, KeyOffset, keyLength)
    Platform.copyMemory(valueBase, valueOffset, entry, KeyOffset + keyLength, valueLength)
    entry
  }

  /** An entry that says a key is not there. */
  def delete(keyBase: AnyRef, keyOffset: Long, keyLength: Int): Array[Byte] = {
    val entry = allocate(keyLength, 0, DeleteMarker)
    Platform.copyMemory(keyBase, keyOffset, entry, KeyOffset, keyLength)
    entry
  }

  private def allocate(keyLength: Int, valueBytes: Int, valueLength: Int): Array[Byte] = {
    val bytes = HeaderBytes.toLong + keyLength + valueBytes
    if (bytes > RecordBytesMax - TagBytes) {
      throw new DynastateException(ErrorKind.Configuration,
        s"a row of state may have at most $RecordBytesMax bytes, key and value together bytes=$bytes")
    }
    val entry = new Array[Byte](bytes.toInt)
    Platform.putInt(entry, Platform.BYTE_ARRAY_OFFSET, keyLength)
    Platform.putInt(entry, Platform.BYTE_ARRAY_OFFSET + 4, valueLength)
    entry
  }

  /** Bytes of heap one entry takes: header of the array, contents, rounded to 8. */
  def heapBytes(entry: Array[Byte]): Int = (16 + entry.length + 7) & ~7
}

/** A random 128-bit id of one task's try at producing one version. `Attempt.None` stands for none. */
final case class Attempt(high: Long, low: Long) {
  /** The form Spark sees, as a checkpoint id. */
  override def toString: String = new UUID(high, low).toString

  def writeTo(buffer: ByteBuffer): Unit = {
    // Bytes of an attempt are in the order in which they are spelt, whatever the order of the numbers around them.
    buffer.putLong(java.lang.Long.reverseBytes(high)).putLong(java.lang.Long.reverseBytes(low))
  }
}

object Attempt {
  val None: Attempt = Attempt(0, 0)

  def random(): Attempt = {
    val id = UUID.randomUUID()
    Attempt(id.getMostSignificantBits, id.getLeastSignificantBits)
  }

  /** The attempt that a checkpoint id names, if it is one of ours. */
  def parse(text: String): Option[Attempt] =
    try {
      val id = UUID.fromString(text)
      Some(Attempt(id.getMostSignificantBits, id.getLeastSignificantBits)).filter(_.toString == text)
    } catch { case _: IllegalArgumentException => scala.None }

  def readFrom(buffer: ByteBuffer): Attempt =
    Attempt(java.lang.Long.reverseBytes(buffer.getLong), java.lang.Long.reverseBytes(buffer.getLong))
}
