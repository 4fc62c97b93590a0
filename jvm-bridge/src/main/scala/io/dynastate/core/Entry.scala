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

  /** A copy of a value that is to be appended to the list of a key. */
  def copyOf(keyLength: Int, valueBase: AnyRef, valueOffset: Long, valueLength: Int): Array[Byte] = {
    refuseLarge(HeaderBytes.toLong + keyLength + valueLength)
    val value = new Array[Byte](valueLength)
    Platform.copyMemory(valueBase, valueOffset, value, Platform.BYTE_ARRAY_OFFSET, valueLength)
    value
  }

  /** Write the header of an entry into an array. */
  def writeHeader(into: Array[Byte], at: Int, keyLength: Int, valueLength: Int): Unit = {
    Platform.putInt(into, Platform.BYTE_ARRAY_OFFSET + at, keyLength)
    Platform.putInt(into, Platform.BYTE_ARRAY_OFFSET + at + 4, valueLength)
  }

  private def allocate(keyLength: Int, valueBytes: Int, valueLength: Int): Array[Byte] = {
    val bytes = HeaderBytes.toLong + keyLength + valueBytes
    refuseLarge(bytes)
    val entry = new Array[Byte](bytes.toInt)
    writeHeader(entry, 0, keyLength, valueLength)
    entry
  }

  private def refuseLarge(bytes: Long): Unit = if (bytes > RecordBytesMax - TagBytes) {
    throw new DynastateException(ErrorKind.Configuration,
      s"a row of state may have at most $RecordBytesMax bytes, key and value together bytes=$bytes")
  }

  /** Bytes of heap one entry takes: header of the array, contents, rounded to 8. */
  def heapBytes(entry: Array[Byte]): Int = (16 + entry.length + 7) & ~7
}

/**
 * What a slot of a table holds: an entry, or a `ValueList` for a key with several values. Typed as AnyRef, because an array
 * of bytes and an object have nothing else in common, and a wrapper for every row would cost 16 bytes.
 */
object Row {
  /** The entry with the key: the row itself, or the first of its values. */
  def root(row: AnyRef): Array[Byte] = row match {
    case entry: Array[Byte] => entry
    case list: ValueList => list.first
  }

  def isDelete(row: AnyRef): Boolean = row match {
    case entry: Array[Byte] => Entry.isDelete(entry)
    case _ => false
  }

  def heapBytes(row: AnyRef): Long = row match {
    case entry: Array[Byte] => Entry.heapBytes(entry).toLong
    case list: ValueList => list.heapBytes
  }

  def valueCount(row: AnyRef): Int = row match {
    case list: ValueList => list.count
    case _ => 1
  }

  /** By key, as unsigned bytes: the order of RocksDB, and of the encoders of Spark's range scans. */
  val byKey: java.util.Comparator[AnyRef] = (one: AnyRef, other: AnyRef) => {
    val a = root(one)
    val b = root(other)
    java.util.Arrays.compareUnsigned(
      a, Entry.HeaderBytes, Entry.HeaderBytes + Entry.keyLength(a), b, Entry.HeaderBytes, Entry.HeaderBytes + Entry.keyLength(b))
  }
}

/**
 * Two or more values of one key, in the order in which they were appended, linked from the last to the first: an append costs the
 * same whatever the length, and a list that others still see is never changed.
 *
 * @param previous the list before this value: an entry, or a ValueList
 */
final class ValueList(val previous: AnyRef, val value: Array[Byte]) {
  val first: Array[Byte] = Row.root(previous)
  val count: Int = Math.addExact(Row.valueCount(previous), 1)
  val heapBytes: Long = Row.heapBytes(previous) + 40 + ((16 + value.length + 7) & ~7)

  /** The values after `known`, which is the row of an earlier state of this list, or null; oldest first, without the root's. */
  def valuesSince(known: AnyRef): Array[Array[Byte]] = {
    val values = new Array[Array[Byte]](count - 1)
    var at: AnyRef = this
    var free = values.length
    while ((at ne known) && at.isInstanceOf[ValueList]) {
      val list = at.asInstanceOf[ValueList]
      free -= 1
      values(free) = list.value
      at = list.previous
    }
    if (free == 0) values else java.util.Arrays.copyOfRange[Array[Byte]](values, free, values.length)
  }

  /** Whether `known` is an earlier state of this list. */
  def continues(known: AnyRef): Boolean = known != null && {
    val length = Row.valueCount(known)
    var at: AnyRef = this
    while (at.isInstanceOf[ValueList] && Row.valueCount(at) > length) at = at.asInstanceOf[ValueList].previous
    at eq known
  }
}

/** A random 128-bit id of one task's try at producing one version. `Attempt.None` stands for none. */
final case class Attempt(high: Long, low: Long) {
  /** 32 hex digits, as in keys of the tables and in what the sidecar logs. */
  override def toString: String = checkpointId.replace("-", "")

  /** The form Spark sees: a UUID. */
  def checkpointId: String = new UUID(high, low).toString

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

  /** The attempt that a checkpoint id names, if it is one of ours. Zeros are not: they stand for none, which means any. */
  def parse(text: String): Option[Attempt] =
    try {
      val id = UUID.fromString(text)
      Some(Attempt(id.getMostSignificantBits, id.getLeastSignificantBits)).filter(attempt => attempt.checkpointId == text && attempt != None)
    } catch { case _: IllegalArgumentException => scala.None }

  def readFrom(buffer: ByteBuffer): Attempt =
    Attempt(java.lang.Long.reverseBytes(buffer.getLong), java.lang.Long.reverseBytes(buffer.getLong))
}
