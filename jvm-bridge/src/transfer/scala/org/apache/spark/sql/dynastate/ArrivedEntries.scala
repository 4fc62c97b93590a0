package org.apache.spark.sql.dynastate

import java.nio.ByteBuffer

import org.apache.spark.sql.catalyst.expressions.UnsafeRow
import org.apache.spark.unsafe.Platform

/** Entries that arrive at a new store, in packets. */
private[dynastate] final class ArrivedEntries(shape: StoreShape, packets: Iterator[Array[Byte]])
  extends Iterator[StateEntry] {
  private val families = shape.families.toArray
  private val expected = new Content
  private var bytes: ByteBuffer = ByteBuffer.allocate(0)

  override def hasNext: Boolean = {
    while (!bytes.hasRemaining && packets.hasNext) {
      bytes = ByteBuffer.wrap(packets.next())
      if (bytes.getInt(0) == Packet.End) {
        bytes.getInt()
        expected.add(new Content(bytes.getLong(), bytes.getLong(), bytes.getLong()))
      }
    }
    bytes.hasRemaining
  }

  override def next(): StateEntry = {
    val number = bytes.getInt()
    val key = row(families(number).keySchema.length)
    val count = bytes.getInt()
    new StateEntry(number, key, Seq.fill(count)(row(families(number).valueSchema.length)))
  }

  private def row(fields: Int): UnsafeRow = {
    val (length, row) = (bytes.getInt(), new UnsafeRow(fields))
    row.pointTo(bytes.array, Platform.BYTE_ARRAY_OFFSET.toLong + bytes.position(), length)
    bytes.position(bytes.position() + length)
    row
  }

  def mustBeWhole(store: StoreAt, content: Content): Unit = expected.mustBe(content, store, "what the shuffle brought")
}
