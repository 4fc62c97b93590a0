package io.dynastate.spark

import io.dynastate.memory.StoredValue

import org.apache.spark.sql.catalyst.expressions.UnsafeRow
import org.apache.spark.sql.execution.streaming.state.StateSchemaProvider

/** This Spark has no Avro encoding of state, so that no value has an earlier schema. */
private[spark] final class EarlierSchemas(family: ColumnFamily, provider: StateSchemaProvider) {
  def read(value: StoredValue): UnsafeRow =
    throw new IllegalStateException(s"this Spark has no schemas of values family=${family.name}")
}
