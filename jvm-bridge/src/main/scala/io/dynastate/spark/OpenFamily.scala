package io.dynastate.spark

import io.dynastate.memory.EncodedRow

import org.apache.spark.sql.catalyst.expressions.UnsafeRow
import org.apache.spark.sql.execution.streaming.state.{NoPrefixKeyStateEncoderSpec, RocksDBKeyStateEncoder, UnsafeRowDataEncoder}

/**
 * A column family of one open store. Keys without prefix or range scans are the raw row; others are encoded by Spark's own
 * encoder, which has state, so that every store has its own.
 */
final class OpenFamily(val id: Int, val family: ColumnFamily, useColumnFamilies: Boolean) {
  val encoder: RocksDBKeyStateEncoder = family.spec match {
    case _: NoPrefixKeyStateEncoderSpec => null
    case spec => spec.toEncoder(new UnsafeRowDataEncoder(spec, family.valueSchema), useColumnFamilies)
  }
  val keyColumns: Int = family.keySchema.length
  val valueColumns: Int = family.valueSchema.length

  def scansInOrder: Boolean = encoder != null && Spark42.supportsRangeScan(family.spec, encoder)

  def supportsDeleteRange: Boolean = encoder != null && Spark42.supportsDeleteRange(family.spec, encoder)

  /** The key of an encoded row; without an encoder, `row` is made to point to it. */
  def keyOf(encoded: Array[Byte], row: UnsafeRow): UnsafeRow =
    if (encoder == null) {
      row.pointTo(encoded, EncodedRow.KeyOffset, EncodedRow.keyLength(encoded))
      row
    } else encoder.decodeKey(java.util.Arrays.copyOfRange(encoded, EncodedRow.HeaderBytes, EncodedRow.HeaderBytes + EncodedRow.keyLength(encoded)))
}
