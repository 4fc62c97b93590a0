package io.dynastate.memory

/**
 * The content of a table's slot: an `EncodedRow`, or a `ValueList` for a key with several values. Typed as AnyRef, because an array of
 * bytes and an object have no other common type, and a wrapper for every row would take 16 bytes.
 */
object Row {
  /** The encoded row with the key: the row itself, or the first of its values. */
  def root(row: AnyRef): Array[Byte] = row match {
    case encoded: Array[Byte] => encoded
    case list: ValueList => list.first
  }

  def isDelete(row: AnyRef): Boolean = row match {
    case encoded: Array[Byte] => EncodedRow.isDelete(encoded)
    case _ => false
  }

  def heapBytes(row: AnyRef): Long = row match {
    case encoded: Array[Byte] => EncodedRow.heapBytes(encoded).toLong
    case list: ValueList => list.heapBytes
  }

  def valueCount(row: AnyRef): Int = row match {
    case list: ValueList => list.count
    case _ => 1
  }

  /** Order by key, as unsigned bytes: the order of RocksDB, and of the encoders of Spark's range scans. */
  val byKey: java.util.Comparator[AnyRef] = (one: AnyRef, other: AnyRef) => {
    val a = root(one)
    val b = root(other)
    java.util.Arrays.compareUnsigned(
      a, EncodedRow.HeaderBytes, EncodedRow.HeaderBytes + EncodedRow.keyLength(a), b, EncodedRow.HeaderBytes, EncodedRow.HeaderBytes + EncodedRow.keyLength(b))
  }
}
