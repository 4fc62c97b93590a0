package org.apache.spark.sql.dynastate

import java.nio.ByteBuffer

import org.apache.spark.sql.catalyst.expressions.UnsafeRow
import org.apache.spark.unsafe.Platform

/** Entries as bytes, until they are taken. */
private final class Packet {
  private var bytes = ByteBuffer.allocate(1024)

  def size: Int = bytes.position()

  def take(): Array[Byte] = {
    val packet = java.util.Arrays.copyOf(bytes.array, bytes.position())
    bytes.clear()
    packet
  }

  def add(entry: StateEntry): Unit = {
    reserve(12 + entry.key.getSizeInBytes + entry.values.map(4 + _.getSizeInBytes).sum)
    bytes.putInt(entry.family)
    put(entry.key)
    bytes.putInt(entry.values.size)
    entry.values.foreach(put)
  }

  private def put(row: UnsafeRow): Unit = {
    bytes.putInt(row.getSizeInBytes)
    row.writeToMemory(bytes.array, Platform.BYTE_ARRAY_OFFSET.toLong + bytes.position())
    bytes.position(bytes.position() + row.getSizeInBytes)
  }

  private def reserve(length: Int): Unit = if (bytes.remaining < length) {
    val larger = ByteBuffer.allocate(math.max(bytes.capacity * 2, bytes.position() + length))
    bytes = larger.put(bytes.flip())
  }
}

private object Packet {
  val End: Int = -1

  def end(content: Content): Array[Byte] =
    ByteBuffer.allocate(28).putInt(End).putLong(content.rows).putLong(content.bytes).putLong(content.digest).array
}
