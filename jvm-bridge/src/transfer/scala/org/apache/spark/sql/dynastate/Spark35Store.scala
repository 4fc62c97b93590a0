package org.apache.spark.sql.dynastate

import io.dynastate.spark.ColumnFamily

import org.apache.spark.sql.catalyst.expressions.SessionWindow
import org.apache.spark.sql.execution.streaming.operators.stateful.StatefulOperatorsUtils._
import org.apache.spark.sql.execution.streaming.state._
import org.apache.spark.sql.types.{NullType, StructField, TimestampType}

/** A store of Spark 3.5, which has no description of its operator: the columns that each operator adds show which one
 * it is.
 */
private[dynastate] final case class Spark35Store(schema: StateStoreColFamilySchema, name: String) {
  private val keys = schema.keySchema
  private val values = schema.valueSchema

  val operatorName: String = {
    if (name != StateStoreId.DEFAULT_STORE_NAME) SYMMETRIC_HASH_JOIN_EXEC_OP_NAME
    else if (isSessionWindow) "sessionWindowStateStoreSaveExec"
    else if (keys.map(_.dataType) == Seq(NullType)) "globalLimit"
    else if (values.fieldNames.sameElements(Array("__dummy__"))) "dedupe"
    else if (values.fieldNames.sameElements(Array("expiresAtMicros"))) "dedupeWithinWatermark"
    else if (values.fieldNames.contains("groupState")) "flatMapGroupsWithState"
    else "stateStoreSave"
  }

  /** Rows of session windows are read by their keys without the last column. */
  private def isSessionWindow: Boolean =
    keys.lastOption.contains(StructField("sessionStartTime", TimestampType, nullable = false)) &&
      values.exists(_.metadata.contains(SessionWindow.marker))

  private def prefixColumns: Int = if (isSessionWindow) keys.length - 1 else 0

  /** Whether the operator needs all rows together, in one partition. */
  def isSingle: Boolean = keys.isEmpty || operatorName == "globalLimit" || (isSessionWindow && prefixColumns == 0)

  def family: ColumnFamily = {
    val spec =
      if (prefixColumns > 0) PrefixKeyScanStateEncoderSpec(keys, prefixColumns) else NoPrefixKeyStateEncoderSpec(keys)
    ColumnFamily(StateStore.DEFAULT_COL_FAMILY_NAME, spec, values, multipleValues = false, internal = false)
  }
}
