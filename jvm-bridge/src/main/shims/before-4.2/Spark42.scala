package io.dynastate.spark

import org.apache.spark.sql.catalyst.expressions.UnsafeRow
import org.apache.spark.sql.execution.streaming.state._

/** Spark's traits as they are since 4.2. Members that this Spark does not have are declared here, and never called. */
private[spark] trait ReadStateStore42 extends ReadStateStore41 {
  def keyExists(key: UnsafeRow, colFamilyName: String): Boolean

  def multiGet(keys: Array[UnsafeRow], colFamilyName: String): Iterator[UnsafeRow]

  def iteratorWithMultiValues(colFamilyName: String): StateStoreIterator[UnsafeRowPair]

  def prefixScanWithMultiValues(prefixKey: UnsafeRow, colFamilyName: String): StateStoreIterator[UnsafeRowPair]

  def rangeScan(
      startKey: Option[UnsafeRow], endKey: Option[UnsafeRow], colFamilyName: String): StateStoreIterator[UnsafeRowPair]

  def rangeScanWithMultiValues(startKey: Option[UnsafeRow], endKey: Option[UnsafeRow],
      colFamilyName: String): StateStoreIterator[UnsafeRowPair]

  def allColumnFamilyNames: Set[String]
}

private[spark] trait StateStore42 extends StateStore41 with ReadStateStore42 {
  def deleteRange(beginKey: UnsafeRow, endKey: UnsafeRow, colFamilyName: String): Unit
}

private[spark] trait StateStoreProvider42 extends StateStoreProvider41 {
  def getStore(version: Long, stateStoreCkptId: Option[String], forceSnapshotOnCommit: Boolean,
      loadEmpty: Boolean): StateStore

  override def getStore(version: Long, stateStoreCkptId: Option[String]): StateStore =
    getStore(version, stateStoreCkptId, forceSnapshotOnCommit = false, loadEmpty = false)

  def upgradeReadStoreToWriteStore(readStore: ReadStateStore, version: Long, uniqueId: Option[String],
      forceSnapshotOnCommit: Boolean): StateStore

  override def upgradeReadStoreToWriteStore(readStore: ReadStateStore, version: Long,
      uniqueId: Option[String]): StateStore =
    upgradeReadStoreToWriteStore(readStore, version, uniqueId, forceSnapshotOnCommit = false)
}

/** Properties of encoders, which have them themselves since 4.2. Here only those for range scans keep an order. */
private[spark] object Spark42 {
  def supportsRangeScan(spec: KeyStateEncoderSpec, encoder: RocksDBKeyStateEncoder): Boolean =
    spec.isInstanceOf[RangeKeyScanStateEncoderSpec]

  def supportsDeleteRange(spec: KeyStateEncoderSpec, encoder: RocksDBKeyStateEncoder): Boolean =
    supportsRangeScan(spec, encoder)
}
