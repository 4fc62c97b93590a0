package io.dynastate.compat

import org.apache.hadoop.conf.Configuration
import org.apache.spark.SparkThrowable
import org.apache.spark.sql.catalyst.expressions.UnsafeRow
import org.apache.spark.sql.dynastate.internals.ChangeIterator
import org.apache.spark.sql.execution.streaming.state._
import org.apache.spark.sql.types.StructType

/** A store of this Spark has one family, no lists, and no checkpoint ids. */
trait Compat40 {
  val hasIds = false

  def needsIds(): Unit = throw new Absent("checkpoint ids")

  def replayable(provider: StateStoreProvider): SupportsFineGrainedReplay = throw new Absent("replay and change feed")

  /** What this Spark's stores raise in the place of conditions that have no names yet. */
  def olderNames(condition: String): Seq[String] =
    Older.collect { case (newer, older) if condition.startsWith(newer) => older }.toSeq

  private val Older = Map("UNEXPECTED_STATE_STORE_VERSION" -> "IllegalArgumentException",
    "CANNOT_LOAD_STATE_STORE" -> "IllegalStateException", "CANNOT_WRITE_STATE_STORE" -> "IllegalStateException",
    "STATE_STORE_KEY_ROW_FORMAT" -> "InvalidUnsafeRowException",
    "STATE_STORE_VALUE_ROW_FORMAT" -> "InvalidUnsafeRowException")

  def initialize(provider: StateStoreProvider, id: StateStoreId, key: StructType, value: StructType,
      spec: KeyStateEncoderSpec, families: Boolean, conf: StateStoreConf, hadoop: Configuration, multiple: Boolean,
      schemas: Option[StateSchemaProvider]): Unit = {
    if (families || multiple) throw new Absent("column families")
    if (hadoop.get("spark.sql.streaming.stateStore.checkpointFormatVersion") == "2") throw new Absent("checkpoint ids")
    provider.init(id, key, value,
      spec match {
        case PrefixKeyScanStateEncoderSpec(_, columns) => columns
        case _ => 0
      }, conf, hadoop)
  }

  def conditionOf(error: SparkThrowable): String = error.getErrorClass

  /** The schemas of values in the run in which the last one is the newest, each as often as a family has it. */
  def schemasOf(families: Seq[String], key: StructType, values: Seq[StructType]): Option[StateSchemaProvider] =
    throw new Absent("schemas of values")

  implicit final class ReadStateStore40(store: ReadStateStore) {
    def get(key: UnsafeRow, family: String): UnsafeRow = store.get(key)

    def iterator(family: String): StateStoreIterator[UnsafeRowPair] = closeable(store.iterator())

    def prefixScan(prefix: UnsafeRow, family: String): StateStoreIterator[UnsafeRowPair] =
      closeable(store.prefixScan(prefix))

    /** Ours can be closed, which this Spark never does. */
    private def closeable(pairs: Iterator[UnsafeRowPair]): StateStoreIterator[UnsafeRowPair] = pairs match {
      case ours: StateStoreIterator[UnsafeRowPair] => ours
      case others => new StateStoreIterator(others)
    }

    def valuesIterator(key: UnsafeRow, family: String): Iterator[UnsafeRow] = throw new Absent("lists")
  }

  implicit final class StateStore40(store: StateStore) {
    def put(key: UnsafeRow, value: UnsafeRow, family: String): Unit = store.put(key, value)

    def remove(key: UnsafeRow, family: String): Unit = store.remove(key)

    def merge(key: UnsafeRow, value: UnsafeRow, family: String): Unit = throw new Absent("lists")

    def createColFamilyIfAbsent(family: String, key: StructType, value: StructType, spec: KeyStateEncoderSpec,
        useMultipleValuesPerKey: Boolean = false, isInternal: Boolean = false): Unit =
      throw new Absent("column families")

    def removeColFamilyIfExists(family: String): Boolean = throw new Absent("column families")

    def getStateStoreCheckpointInfo(): StateStoreCheckpointInfo =
      if (store.hasCommitted) StateStoreCheckpointInfo(store.id.partitionId, store.version + 1, None, None)
      else throw new Absent("checkpoint info")
  }

  implicit final class StateStoreProvider40(provider: StateStoreProvider) {
    def getStore(version: Long, id: Option[String]): StateStore = provider.getStore(version)

    def getReadStore(version: Long, id: Option[String]): ReadStateStore = provider.getReadStore(version)
  }

  implicit final class SupportsFineGrainedReplay40(provider: SupportsFineGrainedReplay) {
    def getStateStoreChangeDataReader(first: Long, last: Long, family: Option[String]): ChangeIterator =
      throw new Absent("change feed")
  }
}
