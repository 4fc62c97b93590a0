package org.apache.spark.sql.dynastate

import org.apache.spark.sql.catalyst.expressions.{Attribute, Expression}
import org.apache.spark.sql.catalyst.plans.logical.TransformWithStateInPySpark
import org.apache.spark.sql.execution.SparkPlan
import org.apache.spark.sql.execution.python.streaming.TransformWithStateInPySparkExec
import org.apache.spark.sql.execution.streaming.operators.stateful.StatefulOperatorStateInfo
import org.apache.spark.sql.streaming.{OutputMode, TimeMode}
import org.apache.spark.sql.types.StructType

/** The same as `DynastateTransformWithStateExec`, for the Python operator. */
final class DynastateTransformWithStateInPySparkExec(functionExpr: Expression, groupingAttributes: Seq[Attribute],
    outputAttrs: Seq[Attribute], outputMode: OutputMode, timeMode: TimeMode,
    stateInfo: Option[StatefulOperatorStateInfo], batchTimestampMs: Option[Long], prevBatchTimestampMs: Option[Long],
    eventTimeWatermarkForLateEvents: Option[Long], eventTimeWatermarkForEviction: Option[Long],
    userFacingDataType: TransformWithStateInPySpark.UserFacingDataType.Value, child: SparkPlan, isStreaming: Boolean,
    hasInitialState: Boolean, initialState: SparkPlan, initialStateGroupingAttrs: Seq[Attribute],
    initialStateSchema: StructType)
  extends TransformWithStateInPySparkExec(functionExpr, groupingAttributes, outputAttrs, outputMode, timeMode,
    stateInfo, batchTimestampMs, prevBatchTimestampMs, eventTimeWatermarkForLateEvents, eventTimeWatermarkForEviction,
    userFacingDataType, child, isStreaming, hasInitialState, initialState, initialStateGroupingAttrs,
    initialStateSchema) {

  override def validateStateStoreProvider(isStreaming: Boolean): Unit = ()

  override protected def withNewChildrenInternal(newLeft: SparkPlan,
      newRight: SparkPlan): DynastateTransformWithStateInPySparkExec =
    DynastateTransformWithStateInPySparkExec(super.withNewChildrenInternal(newLeft, newRight))

  override def canEqual(that: Any): Boolean = that.isInstanceOf[DynastateTransformWithStateInPySparkExec]

  override def equals(that: Any): Boolean = canEqual(that) && super.equals(that)

  override def hashCode(): Int = super.hashCode()
}

object DynastateTransformWithStateInPySparkExec {
  /** By position, because Spark 4.2 and 4.3 name the third field differently. */
  def apply(node: TransformWithStateInPySparkExec): DynastateTransformWithStateInPySparkExec = node match {
    case TransformWithStateInPySparkExec(functionExpr, groupingAttributes, outputAttrs, outputMode, timeMode, stateInfo,
          batchTimestampMs, prevBatchTimestampMs, eventTimeWatermarkForLateEvents, eventTimeWatermarkForEviction,
          userFacingDataType, child, isStreaming, hasInitialState, initialState, initialStateGroupingAttrs,
          initialStateSchema) =>
      new DynastateTransformWithStateInPySparkExec(functionExpr, groupingAttributes, outputAttrs, outputMode, timeMode,
        stateInfo, batchTimestampMs, prevBatchTimestampMs, eventTimeWatermarkForLateEvents,
        eventTimeWatermarkForEviction, userFacingDataType, child, isStreaming, hasInitialState, initialState,
        initialStateGroupingAttrs, initialStateSchema)
  }
}
