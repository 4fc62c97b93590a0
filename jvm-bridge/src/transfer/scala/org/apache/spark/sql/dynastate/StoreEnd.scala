package org.apache.spark.sql.dynastate

import java.util.UUID

import scala.util.Using

import io.dynastate.{DynastateException, ErrorKind}
import io.dynastate.spark.DynamoDBStateStoreProvider
import org.apache.hadoop.conf.Configuration
import org.apache.hadoop.fs.Path

import org.apache.spark.TaskContext
import org.apache.spark.sql.execution.streaming.state._
import org.apache.spark.util.SerializableConfiguration

/** One end of a transfer: the stores below a root, by the provider of a conf, by one run. It goes to the tasks. */
private[dynastate] final class StoreEnd(root: String, conf: StateStoreConf, hadoopConf: SerializableConfiguration,
    run: UUID) extends Serializable {
  import StoreEnd._

  /** Rows of a store, to read until `close`. */
  final class Opened(store: StoreAt, version: Long) extends AutoCloseable {
    private val provider = providerOf(store)
    /** Rows are released after any error: closing RocksDB before would wait for that, and hide the error. */
    val rows: ReadStateStore =
      try provider.getReadStore(version, store.id)
      catch { case e: Throwable => provider.close(); throw e }

    try {
      val unknown = rows.allColumnFamilyNames -- store.shape.families.map(_.name)
      if (unknown.nonEmpty) throw new DynastateException(ErrorKind.Configuration,
        s"the state has column families that the checkpoint does not describe; nothing was written $store " +
          s"families=${unknown.mkString(",")}")
      store.shape.others.foreach(each =>
        rows.registerColFamily(each.name, each.keySchema, each.valueSchema, each.spec, each.multipleValues,
          each.internal))
    } catch { case e: Throwable => close(); throw e }

    override def close(): Unit =
      try rows.release()
      finally provider.close()
  }

  /** A version of a store, closed at the end of the task. */
  def open(store: StoreAt, version: Long): Opened = {
    mustBeThere(store)
    val state = new Opened(store, version)
    TaskContext.get().addTaskCompletionListener[Unit](_ => state.close())
    state
  }

  def reading(store: StoreAt, version: Long)(use: ReadStateStore => Unit): Unit = {
    mustBeThere(store)
    Using.resource(new Opened(store, version))(state => use(state.rows))
  }

  /** Write a version of an empty store, and commit it. */
  def writing(store: StoreAt, version: Long)(use: StateStore => Unit): Written = {
    val provider = providerOf(store)
    try {
      val isHdfs = conf.providerClass == Hdfs
      // Spark's HDFS-backed store begins with version 1 only: its snapshot gets the right name afterwards.
      val target =
        if (isHdfs) provider.getStore(0, None, forceSnapshotOnCommit = true)
        else provider.getStore(version - 1, None, forceSnapshotOnCommit = true, loadEmpty = true)
      try {
        store.shape.others.foreach(each =>
          target.createColFamilyIfAbsent(each.name, each.keySchema, each.valueSchema, each.spec, each.multipleValues,
            each.internal))
        use(target)
        target.commit()
      } finally if (!target.hasCommitted) target.abort()
      if (isHdfs) rename(store, version)
      val id = if (hasIds(conf.providerClass)) target.getStateStoreCheckpointInfo().stateStoreCkptId else None
      Written(id,
        if (isOurs(conf.providerClass)) target.metrics.customMetrics.map { case (metric, value) =>
          metric.name -> value
        }
        else Map.empty)
    } finally provider.close()
  }

  /** Give the snapshot of version 1 another version, and delete the changes of version 1. */
  private def rename(store: StoreAt, version: Long): Unit = {
    val folder = idOf(store).storeCheckpointLocation()
    val files = folder.getFileSystem(hadoopConf.value)
    def move(from: Path, to: Path): Unit = if (files.exists(from) && !files.rename(from, to))
      throw new DynastateException(ErrorKind.Configuration,
        s"a file of the new checkpoint cannot be renamed file=$from")
    if (version != 1) {
      val (first, target) = (new Path(folder, "1.snapshot"), new Path(folder, s"$version.snapshot"))
      move(first.suffix(Checksum), target.suffix(Checksum))
      move(first, target)
      val changes = new Path(folder, "1.delta")
      Seq(changes, changes.suffix(Checksum)).foreach(files.delete(_, false))
    }
  }

  /** Spark's providers make the folder that they read, if it is missing; ours need none. */
  private def mustBeThere(store: StoreAt): Unit = if (!isOurs(conf.providerClass)) {
    val folder = idOf(store).storeCheckpointLocation()
    if (!folder.getFileSystem(hadoopConf.value).exists(folder)) throw new DynastateException(ErrorKind.Configuration,
      s"the folder of a store is gone from the old checkpoint; nothing was written folder=$folder")
  }

  private def idOf(store: StoreAt): StateStoreId =
    StateStoreId(root, store.shape.operator, store.partition, store.shape.name)

  private def providerOf(store: StoreAt): StateStoreProvider = {
    val hadoop = new Configuration(hadoopConf.value)
    val default = store.shape.default
    StateStoreProvider.createAndInit(StateStoreProviderId(idOf(store), run), default.keySchema, default.valueSchema,
      default.spec, store.shape.usesFamilies, conf, hadoop, default.multipleValues, store.shape.schemas)
  }
}

/** What a store reports of its commit: the id of its version, if it has one, and metrics by name. */
private[dynastate] final case class Written(id: Option[String], metrics: Map[String, Long]) {
  def metric(name: String): Long = metrics.getOrElse(name, 0L)
}

private[dynastate] object StoreEnd {
  /** Ends the name of the file that has another one's checksum. */
  private val Checksum = ".crc"
  private val Hdfs = classOf[HDFSBackedStateStoreProvider].getName

  def isOurs(provider: String): Boolean = provider == classOf[DynamoDBStateStoreProvider].getName

  /** Whether a provider knows checkpoint format v2. */
  def hasIds(provider: String): Boolean = provider != Hdfs
}
