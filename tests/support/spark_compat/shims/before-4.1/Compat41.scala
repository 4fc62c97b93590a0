package io.dynastate.compat

import org.apache.spark.sql.catalyst.expressions.UnsafeRow
import org.apache.spark.sql.execution.streaming.state._

trait Compat41 {
  val hasMaxVersionsToDeletePerMaintenance = false

  implicit final class ReadStateStore41(store: ReadStateStore) {
    def release(): Unit = store.abort()
  }

  /** As in list state. */
  implicit final class StateStore41(store: StateStore) {
    def putList(key: UnsafeRow, values: Array[UnsafeRow], family: String): Unit = {
      if (values == null || values.isEmpty) throw new Absent("putList of nothing")
      store.put(key, values.head, family)
      mergeList(key, values.tail, family)
    }

    def mergeList(key: UnsafeRow, values: Array[UnsafeRow], family: String): Unit = {
      if (values == null) throw new Absent("mergeList of nothing")
      values.foreach(store.merge(key, _, family))
    }
  }

  /** An aggregation opens a second store to write. */
  implicit final class StateStoreProvider41(provider: StateStoreProvider) {
    def upgradeReadStoreToWriteStore(readStore: ReadStateStore, version: Long, id: Option[String]): StateStore =
      if (readStore.version == version) provider.getStore(version, id)
      else throw new Absent("upgradeReadStoreToWriteStore")

    def supportedInstanceMetrics: Seq[AnyRef] = Nil
  }

  /** None in this Spark. */
  implicit final class StateStoreMetrics41(metrics: StateStoreMetrics) {
    def instanceMetrics: Map[AnyRef, Long] = Map.empty
  }

  /** Versions are identified by number only. */
  def replayReadState(provider: SupportsFineGrainedReplay, from: Long, to: Long, fromId: Option[String],
      toId: Option[String]): ReadStateStore = provider.replayReadStateFromSnapshot(from, to)

  def replayState(provider: SupportsFineGrainedReplay, from: Long, to: Long, fromId: Option[String],
      toId: Option[String]): StateStore = provider.replayStateFromSnapshot(from, to)

  def changes(provider: SupportsFineGrainedReplay, first: Long, last: Long, family: Option[String],
      lastId: Option[String]) = provider.getStateStoreChangeDataReader(first, last, family)
}
