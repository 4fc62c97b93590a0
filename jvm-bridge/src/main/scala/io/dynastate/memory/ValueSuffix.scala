package io.dynastate.memory

import java.util.zip.CRC32C

import org.apache.spark.unsafe.Platform

/** What follows the row of a value (docs/storage-format.md, "Changes"): the id of the schema that the row was written
 * with, unless it is the first one, and a checksum over the key and all before it. The length of an UnsafeRow is a
 * multiple of 8, so the length of a value says what follows.
 */
object ValueSuffix {
  private[memory] val SchemaIdBytes = 2
  private[memory] val ChecksumBytes = 4

  /** A key, the row of its value, and what follows it. */
  def append(keyBase: AnyRef, keyOffset: Long, keyLength: Int, rowBase: AnyRef, rowOffset: Long, rowLength: Int,
      schemaId: Int, withChecksum: Boolean): Array[Byte] = {
    val rowEnd = Math.addExact(keyLength, rowLength)
    val end = Math.addExact(rowEnd, if (schemaId == 0) 0 else SchemaIdBytes)
    val whole = new Array[Byte](Math.addExact(end, if (withChecksum) ChecksumBytes else 0))
    Platform.copyMemory(keyBase, keyOffset, whole, Platform.BYTE_ARRAY_OFFSET, keyLength)
    Platform.copyMemory(rowBase, rowOffset, whole, Platform.BYTE_ARRAY_OFFSET + keyLength, rowLength)
    if (schemaId != 0) Platform.putShort(whole, Platform.BYTE_ARRAY_OFFSET + rowEnd, schemaId.toShort)
    if (withChecksum) {
      val checksum = new CRC32C
      checksum.update(whole, 0, end)
      Platform.putInt(whole, Platform.BYTE_ARRAY_OFFSET + end, checksum.getValue.toInt)
    }
    whole
  }
}
