package io.dynastate.spark

import io.dynastate.{DynastateException, ErrorKind}

import org.apache.spark.sql.execution.streaming.state._

/** Spark's traits as they are since 4.0. */
private[spark] trait ReadStateStore40 extends ReadStateStore

private[spark] trait StateStore40 extends StateStore with ReadStateStore40

private[spark] trait StateStoreProvider40 extends StateStoreProvider

private[spark] object Spark40 {
  def usesCheckpointIds(conf: StateStoreConf): Boolean = conf.enableStateStoreCheckpointIds

  def usesAvro(conf: StateStoreConf): Boolean = conf.stateStoreEncodingFormat == "avro"

  def minVersionsToDelete(conf: StateStoreConf): Long = conf.minVersionsToDelete

  /** This Spark gives every task the id of its run. */
  def noRunId(store: String): DynastateException =
    new DynastateException(ErrorKind.Internal, s"Spark gave no run id to the state store store=$store")
}
