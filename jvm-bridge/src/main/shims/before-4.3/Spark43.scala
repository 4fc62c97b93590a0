package io.dynastate.spark

import org.apache.spark.sql.execution.streaming.state._
import org.apache.spark.sql.types.StructType

/** Spark's traits as they are since 4.3. Members that this Spark does not have are declared here, and never called. */
private[spark] trait ReadStateStore43 extends ReadStateStore42 {
  def registerColFamily(colFamilyName: String, keySchema: StructType, valueSchema: StructType,
      keyStateEncoderSpec: KeyStateEncoderSpec, useMultipleValuesPerKey: Boolean, isInternal: Boolean): Unit =
    throw new UnsupportedOperationException("registerColFamily is for read stores, of Spark 4.3")
}

private[spark] trait StateStore43 extends StateStore42 with ReadStateStore43

/** This Spark calls `doMaintenance`, which does both. */
private[spark] trait StateStoreProvider43 extends StateStoreProvider42 {
  def doSnapshotMaintenance(): Unit

  def doCleanupMaintenance(): Unit
}
