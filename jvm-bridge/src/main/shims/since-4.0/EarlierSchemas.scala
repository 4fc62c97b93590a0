package io.dynastate.spark

import scala.collection.mutable

import io.dynastate.memory.StoredValue

import org.apache.spark.sql.catalyst.expressions.UnsafeRow
import org.apache.spark.sql.execution.streaming.state.{
  AvroStateEncoder, StateSchemaMetadataKey, StateSchemaMetadataValue, StateSchemaProvider
}
import org.apache.spark.sql.types.StructType

/** Reads values of a column family that were written with an earlier schema, as rows of the schema that the query has
 * now: by the rules of Avro, and by the encoder of Spark's RocksDB provider. It has state: every store has its own.
 */
private[spark] final class EarlierSchemas(family: ColumnFamily, provider: StateSchemaProvider) {
  private[this] val newest = new AvroStateEncoder(family.spec, family.valueSchema, Some(provider), family.name)
  private[this] val writers = mutable.HashMap.empty[Int, AvroStateEncoder]

  /** A row of its own, which no later call changes. */
  def read(value: StoredValue): UnsafeRow = {
    val schemaId = value.schemaId
    val schema = family.earlierSchemas(schemaId)
    val row = new UnsafeRow(schema.length)
    row.pointTo(value.bytes, value.rowOffset, value.rowLength)
    newest.decodeValue(writers.getOrElseUpdate(schemaId, writer(schema, schemaId)).encodeValue(row)).copy()
  }

  private def writer(schema: StructType, id: Int) =
    new AvroStateEncoder(family.spec, schema, Some(new EarlierSchemas.At(provider, id.toShort)), family.name)
}

private object EarlierSchemas {
  /** The schemas as they were when one of them was the newest. */
  final class At(all: StateSchemaProvider, id: Short) extends StateSchemaProvider {
    override def getSchemaMetadataValue(key: StateSchemaMetadataKey): StateSchemaMetadataValue =
      all.getSchemaMetadataValue(key)

    override def getCurrentStateSchemaId(family: String, isKey: Boolean): Short = id
  }
}
