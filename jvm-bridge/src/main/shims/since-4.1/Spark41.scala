package io.dynastate.spark

import org.apache.hadoop.conf.Configuration

import org.apache.spark.sql.catalyst.expressions.UnsafeRow
import org.apache.spark.sql.execution.streaming.state._
import org.apache.spark.sql.types.StructType

/** Spark's traits as they are since 4.1. */
private[spark] trait ReadStateStore41 extends ReadStateStore40

private[spark] trait StateStore41 extends StateStore40 with ReadStateStore41

private[spark] trait StateStoreProvider41 extends StateStoreProvider40 with SupportsFineGrainedReplay

/** This Spark passes a task's read store to `upgradeReadStoreToWriteStore` itself. */
private[spark] final class ReadStores41 {
  def opened(store: ReadStateStore, id: Option[String]): Unit = ()

  def take(version: Long, id: Option[String]): Option[ReadStateStore] = None
}

private[spark] object Spark41 {
  def reportCommit(newVersion: Long, id: StateStoreId, conf: StateStoreConf, hadoopConf: Configuration): Unit =
    if (conf.commitValidationEnabled) StateStore.reportCommitToCoordinator(newVersion, id, hadoopConf)

  def validateStateRowFormat(key: UnsafeRow, keySchema: StructType, value: UnsafeRow, valueSchema: StructType,
      id: StateStoreId, conf: StateStoreConf): Unit =
    StateStoreProvider.validateStateRowFormat(key, keySchema, value, valueSchema, id, conf)

  def maxVersionsToDeletePerMaintenance(conf: StateStoreConf): Int = conf.maxVersionsToDeletePerMaintenance
}
