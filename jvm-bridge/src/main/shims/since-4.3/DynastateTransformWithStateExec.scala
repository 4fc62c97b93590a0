package org.apache.spark.sql.dynastate

import org.apache.spark.sql.catalyst.encoders.ExpressionEncoder
import org.apache.spark.sql.catalyst.expressions.{Attribute, Expression}
import org.apache.spark.sql.execution.SparkPlan
import org.apache.spark.sql.execution.streaming.operators.stateful.StatefulOperatorStateInfo
import org.apache.spark.sql.execution.streaming.operators.stateful.transformwithstate.TransformWithStateExec
import org.apache.spark.sql.streaming.{OutputMode, StatefulProcessor, TimeMode}

/** transformWithState without the check for the provider's class name. It is never equal to the node that it replaces,
 * or Catalyst would see no change in the plan, and keep the old one. The constructor's parameters are the base's, for
 * `makeCopy`.
 */
final class DynastateTransformWithStateExec(keyDeserializer: Expression, valueDeserializer: Expression,
    groupingAttributes: Seq[Attribute], dataAttributes: Seq[Attribute],
    statefulProcessor: StatefulProcessor[Any, Any, Any], timeMode: TimeMode, outputMode: OutputMode,
    keyEncoder: ExpressionEncoder[Any], outputObjAttr: Attribute, stateInfo: Option[StatefulOperatorStateInfo],
    batchTimestampMs: Option[Long], prevBatchTimestampMs: Option[Long], eventTimeWatermarkForLateEvents: Option[Long],
    eventTimeWatermarkForEviction: Option[Long], child: SparkPlan, isStreaming: Boolean, isRealTimeMode: Boolean,
    hasInitialState: Boolean, initialStateGroupingAttrs: Seq[Attribute], initialStateDataAttrs: Seq[Attribute],
    initialStateDeserializer: Expression, initialState: SparkPlan)
  extends TransformWithStateExec(keyDeserializer, valueDeserializer, groupingAttributes, dataAttributes,
    statefulProcessor, timeMode, outputMode, keyEncoder, outputObjAttr, stateInfo, batchTimestampMs,
    prevBatchTimestampMs, eventTimeWatermarkForLateEvents, eventTimeWatermarkForEviction, child, isStreaming,
    isRealTimeMode, hasInitialState, initialStateGroupingAttrs, initialStateDataAttrs, initialStateDeserializer,
    initialState) {

  override def validateStateStoreProvider(isStreaming: Boolean): Unit = ()

  override protected def withNewChildrenInternal(newLeft: SparkPlan,
      newRight: SparkPlan): DynastateTransformWithStateExec =
    DynastateTransformWithStateExec(super.withNewChildrenInternal(newLeft, newRight))

  override def canEqual(that: Any): Boolean = that.isInstanceOf[DynastateTransformWithStateExec]

  override def equals(that: Any): Boolean = canEqual(that) && super.equals(that)

  override def hashCode(): Int = super.hashCode()
}

object DynastateTransformWithStateExec {
  def apply(node: TransformWithStateExec): DynastateTransformWithStateExec = new DynastateTransformWithStateExec(
    node.keyDeserializer, node.valueDeserializer, node.groupingAttributes, node.dataAttributes, node.statefulProcessor,
    node.timeMode, node.outputMode, node.keyEncoder, node.outputObjAttr, node.stateInfo, node.batchTimestampMs,
    node.prevBatchTimestampMs, node.eventTimeWatermarkForLateEvents, node.eventTimeWatermarkForEviction, node.child,
    node.isStreaming, node.isRealTimeMode, node.hasInitialState, node.initialStateGroupingAttrs,
    node.initialStateDataAttrs, node.initialStateDeserializer, node.initialState)
}
