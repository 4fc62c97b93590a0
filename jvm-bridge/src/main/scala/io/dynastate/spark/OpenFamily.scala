package io.dynastate.spark

import io.dynastate.{DynastateException, ErrorKind}
import io.dynastate.memory.{Row, StoredValue}

import org.apache.spark.sql.catalyst.expressions.UnsafeRow
import org.apache.spark.sql.execution.streaming.state.{
  NoPrefixKeyStateEncoderSpec, RocksDBKeyStateEncoder, StateSchemaProvider, UnsafeRowDataEncoder
}

/** A column family of one open store. Keys without prefix or range scans are the raw row; others are encoded by Spark's
 * own encoder, which has state, so that every store has its own.
 */
final class OpenFamily(val id: Int, val family: ColumnFamily, useColumnFamilies: Boolean,
    schemas: Option[StateSchemaProvider]) {
  val encoder: RocksDBKeyStateEncoder = family.spec match {
    case _: NoPrefixKeyStateEncoderSpec => null
    case spec => spec.toEncoder(new UnsafeRowDataEncoder(spec, family.valueSchema), useColumnFamilies)
  }
  val keyColumns: Int = family.keySchema.length
  val valueColumns: Int = family.valueSchema.length
  val schemaId: Int = family.schemaId
  private[this] lazy val oldSchemas = new EarlierSchemas(family, schemas.get)

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

  /** The row of a value: `into` is made to point to it, unless it was written with an earlier schema. */
  def valueOf(value: StoredValue, into: UnsafeRow): UnsafeRow = {
    val writtenWith = value.schemaId
    if (writtenWith == schemaId) {
      into.pointTo(value.bytes, value.rowOffset, value.rowLength)
      into
    } else if (writtenWith < schemaId) oldSchemas.read(value)
    else throw new DynastateException(ErrorKind.Corrupt,
      s"a row was written with a schema that the query does not have family=${family.name} schema_id=$writtenWith " +
        s"last_schema_id=$schemaId")
  }
}
