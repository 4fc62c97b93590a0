package io.dynastate.compat

import org.apache.hadoop.conf.Configuration
import org.apache.spark.SparkThrowable
import org.apache.spark.sql.execution.streaming.state._
import org.apache.spark.sql.types.StructType

trait Compat40 {
  val hasIds = true

  def needsIds(): Unit = ()

  def replayable(provider: StateStoreProvider): SupportsFineGrainedReplay =
    provider.asInstanceOf[SupportsFineGrainedReplay]

  def olderNames(condition: String): Seq[String] = Nil

  def initialize(provider: StateStoreProvider, id: StateStoreId, key: StructType, value: StructType,
      spec: KeyStateEncoderSpec, families: Boolean, conf: StateStoreConf, hadoop: Configuration, multiple: Boolean,
      schemas: Option[StateSchemaProvider]): Unit =
    provider.init(id, key, value, spec, families, conf, hadoop, useMultipleValuesPerKey = multiple, schemas)

  def conditionOf(error: SparkThrowable): String = error.getCondition

  def schemasOf(families: Seq[String], key: StructType, values: Seq[StructType]): Option[StateSchemaProvider] = {
    val provider = new TestStateSchemaProvider
    for (family <- families; id <- values.indices) provider.captureSchema(family, key, values(id), 0, id.toShort)
    Some(provider)
  }
}
