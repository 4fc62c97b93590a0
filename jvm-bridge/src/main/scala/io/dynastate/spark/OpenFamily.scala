package io.dynastate.spark

import io.dynastate.memory.Row

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

  /** Whether it is scanned by range or prefix. */
  def isScanned: Boolean = scansInOrder || encoder != null && encoder.supportPrefixKeyScan

  def supportsDeleteRange: Boolean = encoder != null && Spark42.supportsDeleteRange(family.spec, encoder)

  /** The key of a row; without an encoder, `key` is made to point to it. */
  def keyOf(row: Row, key: UnsafeRow): UnsafeRow =
    if (encoder == null) {
      key.pointTo(row.bytes, row.keyOffset, row.keyLength)
      key
    } else encoder.decodeKey(row.key)
}
