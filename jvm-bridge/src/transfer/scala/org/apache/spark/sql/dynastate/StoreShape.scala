package org.apache.spark.sql.dynastate

import io.dynastate.spark.ColumnFamily

import org.apache.spark.sql.catalyst.types.DataTypeUtils
import org.apache.spark.sql.execution.streaming.operators.stateful.StatefulOperatorsUtils
import org.apache.spark.sql.execution.streaming.operators.stateful.transformwithstate._
import org.apache.spark.sql.execution.streaming.operators.stateful.transformwithstate.timers.TimerStateUtils
import org.apache.spark.sql.execution.streaming.state._
import org.apache.spark.sql.types.{NullType, StructField, StructType}

/** A store of an operator, the same in each partition. Without column families it has the default one only.
 *
 * @param schemas all that its rows were written with, where their encoding is Avro
 */
private[dynastate] final case class StoreShape(operator: Long, operatorName: String, name: String, partitions: Int,
    isSingle: Boolean, described: Seq[ColumnFamily], variables: List[TransformWithStateVariableInfo],
    schemas: Option[StateSchemaProvider], isNew: Boolean = false) {
  private val Default = StateStore.DEFAULT_COL_FAMILY_NAME

  def path: String = s"$operator/$name"

  val others: Seq[ColumnFamily] = described.filter(_.name != Default)

  def usesFamilies: Boolean = others.nonEmpty

  /** The default family of an operator that does not describe it, and has no rows in it. */
  def default: ColumnFamily = described.find(_.name == Default).getOrElse {
    val none = StructType(Array(StructField("__dummy__", NullType)))
    ColumnFamily(Default, NoPrefixKeyStateEncoderSpec(none), none, multipleValues = false, internal = false)
  }

  def families: Seq[ColumnFamily] = default +: others

  def repartitioned(partitions: Int): StoreShape = if (isSingle) this else copy(partitions = partitions)

  /** With rows that come from elsewhere; a schema of the same types keeps its nullability, which Spark compares. */
  def withRows(key: StructType, value: StructType): StoreShape = {
    def either(first: StructType, other: StructType) = if (DataTypeUtils.sameType(first, other)) first else other
    val keys = either(default.keySchema, key)
    val spec = default.spec match {
      case prefix: PrefixKeyScanStateEncoderSpec => prefix.copy(keySchema = keys)
      case _ => NoPrefixKeyStateEncoderSpec(keys)
    }
    copy(described = Seq(default.copy(spec = spec, valueSchema = either(default.valueSchema, value))), isNew = true)
  }

  /** The state format of a join, by its stores and families: 1 and 2 have stores of their own, 3 and 4 families. */
  def joinFormat: Int = if (!usesFamilies) 2 else if (isJoinByTime) 4 else 3

  /** A join of state format 4, whose keys end with a time. */
  def isJoinByTime: Boolean = operatorName == StatefulOperatorsUtils.SYMMETRIC_HASH_JOIN_EXEC_OP_NAME &&
    others.exists(_.name.endsWith("-keyWithTsToValues"))

  /** The state variable that a family of transformWithState belongs to; families of timers have one of their own. */
  def variable(family: String): Option[TransformWithStateVariableInfo] =
    if (TimerStateUtils.isTimerCFName(family))
      Some(TransformWithStateVariableInfo(family, StateVariableType.TimerState, ttlEnabled = false))
    else variables.find(_.stateName == StateStoreColumnFamilySchemaUtils.getBaseStateName(family))
}

/** One store of one partition, and the id of its version in the checkpoint, if that has ids. */
private[dynastate] final case class StoreAt(shape: StoreShape, partition: Int, id: Option[String]) {
  override def toString: String = s"operator=${shape.operator} partition=$partition store=${shape.name}"
}
