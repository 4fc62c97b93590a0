package io.dynastate.memory

import org.apache.spark.unsafe.Platform

/** A value as it is stored: `length` bytes of `bytes` from `at` on, which are an UnsafeRow and its `ValueSuffix`. */
final class StoredValue(val bytes: Array[Byte], val at: Int, val length: Int) {
  def rowOffset: Long = EncodedRow.offset(at)

  def rowLength: Int = length & ~7

  /** The id of the schema that the row was written with. */
  def schemaId: Int =
    if ((length & ValueSuffix.SchemaIdBytes) == 0) 0 else Platform.getShort(bytes, rowOffset + rowLength) & 0xffff

  def hasChecksum: Boolean = (length & ValueSuffix.ChecksumBytes) != 0

  /** Where the checksum begins in the array; it is about the key and all of the value before it. */
  def checksumAt: Int = at + (length & ~ValueSuffix.ChecksumBytes)

  def checksum: Int = EncodedRow.int(bytes, checksumAt)
}
