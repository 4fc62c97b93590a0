package io.dynastate.benchmarks

import org.apache.hadoop.conf.Configuration
import org.apache.spark.sql.catalyst.expressions.UnsafeRow
import org.apache.spark.sql.execution.streaming.state._
import org.apache.spark.sql.types.StructType

/** A store that takes no time, and keeps nothing: what a query takes on it is Spark's own. */
class EmptyStateStoreProvider extends StateStoreProvider {
  private[this] var id: StateStoreId = _

  override def init(stateStoreId: StateStoreId, keySchema: StructType, valueSchema: StructType,
      keyStateEncoderSpec: KeyStateEncoderSpec, useColumnFamilies: Boolean, storeConfs: StateStoreConf,
      hadoopConf: Configuration, useMultipleValuesPerKey: Boolean,
      stateSchemaProvider: Option[StateSchemaProvider]): Unit = id = stateStoreId

  override def stateStoreId: StateStoreId = id

  override def getStore(version: Long, stateStoreCkptId: Option[String], forceSnapshotOnCommit: Boolean,
      loadEmpty: Boolean): StateStore =
    new EmptyStateStore(id, version)

  override def getReadStore(version: Long, uniqueId: Option[String]): ReadStateStore = new EmptyStateStore(id, version)

  override def close(): Unit = ()
}

private final class EmptyStateStore(override val id: StateStoreId, override val version: Long) extends StateStore {
  private[this] var isCommitted = false

  override def get(key: UnsafeRow, colFamilyName: String): UnsafeRow = null
  override def valuesIterator(key: UnsafeRow, colFamilyName: String): Iterator[UnsafeRow] = Iterator.empty
  override def prefixScan(prefixKey: UnsafeRow, colFamilyName: String): StateStoreIterator[UnsafeRowPair] = none
  override def prefixScanWithMultiValues(
      prefixKey: UnsafeRow, colFamilyName: String): StateStoreIterator[UnsafeRowPair] = none
  override def iterator(colFamilyName: String): StateStoreIterator[UnsafeRowPair] = none
  override def iteratorWithMultiValues(colFamilyName: String): StateStoreIterator[UnsafeRowPair] = none
  override def allColumnFamilyNames: Set[String] = Set(StateStore.DEFAULT_COL_FAMILY_NAME)
  override def put(key: UnsafeRow, value: UnsafeRow, colFamilyName: String): Unit = ()
  override def putList(key: UnsafeRow, values: Array[UnsafeRow], colFamilyName: String): Unit = ()
  override def merge(key: UnsafeRow, value: UnsafeRow, colFamilyName: String): Unit = ()
  override def mergeList(key: UnsafeRow, values: Array[UnsafeRow], colFamilyName: String): Unit = ()
  override def remove(key: UnsafeRow, colFamilyName: String): Unit = ()
  override def createColFamilyIfAbsent(colFamilyName: String, keySchema: StructType, valueSchema: StructType,
      keyStateEncoderSpec: KeyStateEncoderSpec, useMultipleValuesPerKey: Boolean, isInternal: Boolean): Unit = ()
  override def removeColFamilyIfExists(colFamilyName: String): Boolean = false
  override def abort(): Unit = ()
  override def release(): Unit = ()
  override def hasCommitted: Boolean = isCommitted
  override def metrics: StateStoreMetrics = StateStoreMetrics(0, 0, Map.empty)
  override def getStateStoreCheckpointInfo(): StateStoreCheckpointInfo =
    StateStoreCheckpointInfo(id.partitionId, version + 1, None, None)

  override def commit(): Long = {
    isCommitted = true
    version + 1
  }

  private def none: StateStoreIterator[UnsafeRowPair] = new StateStoreIterator(Iterator.empty)
}
