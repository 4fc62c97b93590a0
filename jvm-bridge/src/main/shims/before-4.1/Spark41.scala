package io.dynastate.spark

import java.util.concurrent.ConcurrentHashMap

import org.apache.hadoop.conf.Configuration

import org.apache.spark.TaskContext
import org.apache.spark.sql.catalyst.expressions.UnsafeRow
import org.apache.spark.sql.dynastate.internals.ChangeIterator
import org.apache.spark.sql.execution.streaming.state._
import org.apache.spark.sql.types.StructType

/** Spark's traits as they are since 4.1. Members that this Spark does not have are declared here, and never called. */
private[spark] trait ReadStateStore41 extends ReadStateStore40 {
  def release(): Unit
}

private[spark] trait StateStore41 extends StateStore40 with ReadStateStore41 {
  def putList(key: UnsafeRow, values: Array[UnsafeRow], colFamilyName: String): Unit

  def mergeList(key: UnsafeRow, values: Array[UnsafeRow], colFamilyName: String): Unit
}

/** This Spark passes ids of attempts only when it opens a store. */
private[spark] trait StateStoreProvider41 extends StateStoreProvider40 with SupportsFineGrainedReplay {
  def upgradeReadStoreToWriteStore(readStore: ReadStateStore, version: Long, uniqueId: Option[String]): StateStore

  def replayStateFromSnapshot(snapshotVersion: Long, endVersion: Long, readOnly: Boolean,
      snapshotVersionStateStoreCkptId: Option[String], endVersionStateStoreCkptId: Option[String]): StateStore

  override def replayStateFromSnapshot(snapshotVersion: Long, endVersion: Long): StateStore =
    replayStateFromSnapshot(snapshotVersion, endVersion, readOnly = false, None, None)

  def replayReadStateFromSnapshot(snapshotVersion: Long, endVersion: Long,
      snapshotVersionStateStoreCkptId: Option[String], endVersionStateStoreCkptId: Option[String]): ReadStateStore

  override def replayReadStateFromSnapshot(snapshotVersion: Long, endVersion: Long): ReadStateStore =
    replayReadStateFromSnapshot(snapshotVersion, endVersion, None, None)

  def getStateStoreChangeDataReader(startVersion: Long, endVersion: Long, colFamilyNameOpt: Option[String],
      endVersionStateStoreCkptId: Option[String]): ChangeIterator

  override def getStateStoreChangeDataReader(startVersion: Long, endVersion: Long,
      colFamilyNameOpt: Option[String]): ChangeIterator =
    getStateStoreChangeDataReader(startVersion, endVersion, colFamilyNameOpt, None)
}

/** Read stores of running tasks. An aggregation of this Spark opens its version to read, and then to write: the two
 * must be of the same attempt, and the commit of the second reports what the first had to load.
 */
private[spark] final class ReadStores41 {
  private[this] val byTask = new ConcurrentHashMap[TaskContext, (Option[String], ReadStateStore)]

  def opened(store: ReadStateStore, id: Option[String]): Unit = Option(TaskContext.get()).foreach { task =>
    if (byTask.put(task, (id, store)) == null) task.addTaskCompletionListener[Unit](_ => byTask.remove(task))
  }

  /** The read store of this task at a version, once. */
  def take(version: Long, id: Option[String]): Option[ReadStateStore] =
    Option(TaskContext.get()).flatMap(task => Option(byTask.remove(task))).collect {
      case (`id`, store) if store.version == version => store
    }
}

private[spark] object Spark41 {
  /** This Spark does not check that every partition committed. */
  def reportCommit(newVersion: Long, id: StateStoreId, conf: StateStoreConf, hadoopConf: Configuration): Unit = ()

  def validateStateRowFormat(key: UnsafeRow, keySchema: StructType, value: UnsafeRow, valueSchema: StructType,
      id: StateStoreId, conf: StateStoreConf): Unit =
    StateStoreProvider.validateStateRowFormat(key, keySchema, value, valueSchema, conf)

  /** Unlimited. */
  def maxVersionsToDeletePerMaintenance(conf: StateStoreConf): Int = -1
}
