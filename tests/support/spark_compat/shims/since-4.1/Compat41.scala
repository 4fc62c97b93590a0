package io.dynastate.compat

import org.apache.spark.sql.execution.streaming.state._

trait Compat41 {
  val hasMaxVersionsToDeletePerMaintenance = true

  def replayReadState(provider: SupportsFineGrainedReplay, from: Long, to: Long, fromId: Option[String],
      toId: Option[String]): ReadStateStore = provider.replayReadStateFromSnapshot(from, to, fromId, toId)

  def replayState(provider: SupportsFineGrainedReplay, from: Long, to: Long, fromId: Option[String],
      toId: Option[String]): StateStore =
    provider.replayStateFromSnapshot(from, to, snapshotVersionStateStoreCkptId = fromId,
      endVersionStateStoreCkptId = toId)

  def changes(provider: SupportsFineGrainedReplay, first: Long, last: Long, family: Option[String],
      lastId: Option[String]) = provider.getStateStoreChangeDataReader(first, last, family, lastId)
}
