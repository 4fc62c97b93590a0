package org.apache.spark.sql.dynastate

import io.dynastate.{DynastateException, ErrorKind}

import org.apache.spark.sql.catalyst.InternalRow
import org.apache.spark.sql.catalyst.expressions.{UnsafeProjection, UnsafeRow}
import org.apache.spark.sql.types.StructType

/** Writes the struct in a column of a frame as a row of state. */
private final class RowWriter(shape: StoreShape, column: Int, schema: StructType) {
  // A projection of a column that has no nulls would not look for one.
  private val projection = UnsafeProjection.create(schema.asNullable)
  private val never = schema.fields.indices.filterNot(schema(_).nullable)

  def write(row: InternalRow): UnsafeRow = {
    val struct = if (row.isNullAt(column)) null else row.getStruct(column, schema.length)
    if (struct == null || never.exists(struct.isNullAt)) {
      val columns =
        if (struct == null) Seq("key", "value")(column)
        else never.filter(struct.isNullAt).map(schema(_).name).mkString(",")
      throw new DynastateException(ErrorKind.Configuration,
        s"a row has a null where the state has none; nothing was written operator=${shape.operator} " +
          s"store=${shape.name} columns=$columns")
    }
    projection(struct)
  }
}
