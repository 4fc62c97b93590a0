package io.dynastate.spark

import io.dynastate.{DynastateException, ErrorKind}
import org.apache.hadoop.conf.Configuration

import org.apache.spark.sql.catalyst.expressions.UnsafeRow
import org.apache.spark.sql.dynastate.internals.ChangeIterator
import org.apache.spark.sql.execution.streaming.state._
import org.apache.spark.sql.types.StructType

/** Spark's traits as they are since 4.0. This Spark has no column families: what it calls is of the default one. Other
 * members are declared here, and never called.
 */
private[spark] trait ReadStateStore40 extends ReadStateStore {
  def get(key: UnsafeRow, colFamilyName: String): UnsafeRow

  override def get(key: UnsafeRow): UnsafeRow = get(key, ColumnFamily.Default)

  def prefixScan(prefixKey: UnsafeRow, colFamilyName: String): StateStoreIterator[UnsafeRowPair]

  override def prefixScan(prefixKey: UnsafeRow): Iterator[UnsafeRowPair] = prefixScan(prefixKey, ColumnFamily.Default)

  def iterator(colFamilyName: String): StateStoreIterator[UnsafeRowPair]

  override def iterator(): Iterator[UnsafeRowPair] = iterator(ColumnFamily.Default)

  def valuesIterator(key: UnsafeRow, colFamilyName: String): Iterator[UnsafeRow]
}

private[spark] trait StateStore40 extends StateStore with ReadStateStore40 {
  override def iterator(): Iterator[UnsafeRowPair] = iterator(ColumnFamily.Default)

  def put(key: UnsafeRow, value: UnsafeRow, colFamilyName: String): Unit

  override def put(key: UnsafeRow, value: UnsafeRow): Unit = put(key, value, ColumnFamily.Default)

  def remove(key: UnsafeRow, colFamilyName: String): Unit

  override def remove(key: UnsafeRow): Unit = remove(key, ColumnFamily.Default)

  def merge(key: UnsafeRow, value: UnsafeRow, colFamilyName: String): Unit

  def createColFamilyIfAbsent(colFamilyName: String, keySchema: StructType, valueSchema: StructType,
      keyStateEncoderSpec: KeyStateEncoderSpec, useMultipleValuesPerKey: Boolean, isInternal: Boolean): Unit

  def removeColFamilyIfExists(colFamilyName: String): Boolean

  def getStateStoreCheckpointInfo(): StateStoreCheckpointInfo
}

private[spark] trait StateStoreProvider40 extends StateStoreProvider {
  def init(stateStoreId: StateStoreId, keySchema: StructType, valueSchema: StructType,
      keyStateEncoderSpec: KeyStateEncoderSpec, useColumnFamilies: Boolean, storeConfs: StateStoreConf,
      hadoopConf: Configuration, useMultipleValuesPerKey: Boolean,
      stateSchemaProvider: Option[StateSchemaProvider]): Unit

  /** This Spark says of a key how many of its columns are the prefix for scans; 0: it is not scanned. */
  override def init(stateStoreId: StateStoreId, keySchema: StructType, valueSchema: StructType, numColsPrefixKey: Int,
      storeConfs: StateStoreConf, hadoopConf: Configuration): Unit = {
    val spec =
      if (numColsPrefixKey == 0) NoPrefixKeyStateEncoderSpec(keySchema)
      else PrefixKeyScanStateEncoderSpec(keySchema, numColsPrefixKey)
    init(stateStoreId, keySchema, valueSchema, spec, useColumnFamilies = false, storeConfs, hadoopConf,
      useMultipleValuesPerKey = false, None)
  }

  def getStore(version: Long, stateStoreCkptId: Option[String]): StateStore

  override def getStore(version: Long): StateStore = getStore(version, None)

  def getReadStore(version: Long, uniqueId: Option[String]): ReadStateStore

  override def getReadStore(version: Long): ReadStateStore = getReadStore(version, None)

  def getStateStoreChangeDataReader(startVersion: Long, endVersion: Long,
      colFamilyNameOpt: Option[String]): ChangeIterator
}

private[spark] object Spark40 {
  /** This Spark has checkpoint format 1 only. */
  def usesCheckpointIds(conf: StateStoreConf): Boolean = false

  def usesAvro(conf: StateStoreConf): Boolean = false

  /** By the default of later Sparks, `ratioExtraSpaceAllowedInCheckpoint`. */
  def minVersionsToDelete(conf: StateStoreConf): Long = math.round(conf.minVersionsToRetain * 0.3)

  /** This Spark gives tasks no id of their run; the extension does. Without it no query runs: an id that is guessed may
   * be that of another query.
   */
  def noRunId(store: String): DynastateException = new DynastateException(ErrorKind.Configuration,
    "on Spark 3.5 a query needs dynastate's extension, and Apache Spark's names of query threads: start the " +
      "application with spark.sql.extensions=org.apache.spark.sql.dynastate.DynastateExtensions, beside others, as " +
      s"dynastate.configure does; if it has the extension, this runtime cannot be used store=$store")
}
