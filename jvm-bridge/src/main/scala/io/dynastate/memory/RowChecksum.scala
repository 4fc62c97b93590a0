package io.dynastate.memory

import java.util.zip.CRC32C

import org.apache.spark.unsafe.Platform

/**
 * The checksum of a row, after its value (docs/storage-format.md, "Changes"): CRC-32C over key and value. The length of an UnsafeRow
 * is a multiple of 8, so the length of a value says whether it ends with one.
 */
object RowChecksum {
  private val Bytes = 4

  def isIn(valueLength: Int): Boolean = (valueLength & 7) == Bytes

  /** The length of the UnsafeRow in a value, with or without a checksum. */
  def rowLength(valueLength: Int): Int = valueLength & ~7

  /** A key, the row of its value, and their checksum. */
  def append(keyBase: AnyRef, keyOffset: Long, keyLength: Int, valueBase: AnyRef, valueOffset: Long, valueLength: Int): Array[Byte] = {
    val end = Math.addExact(keyLength, valueLength)
    val whole = new Array[Byte](Math.addExact(end, Bytes))
    Platform.copyMemory(keyBase, keyOffset, whole, Platform.BYTE_ARRAY_OFFSET, keyLength)
    Platform.copyMemory(valueBase, valueOffset, whole, Platform.BYTE_ARRAY_OFFSET + keyLength, valueLength)
    val checksum = new CRC32C
    checksum.update(whole, 0, end)
    Platform.putInt(whole, Platform.BYTE_ARRAY_OFFSET + end, checksum.getValue.toInt)
    whole
  }
}
