package org.apache.spark.sql.dynastate

import java.util.UUID

import scala.jdk.CollectionConverters._

import io.dynastate.spark.ProviderSettings
import org.apache.hadoop.fs.{FileContext, Path, UnsupportedFileSystemException}
import org.json4s.JsonAST._
import org.json4s.jackson.JsonMethods.{compact, parse, render}

import org.apache.spark.Partitioner
import org.apache.spark.sql.classic.{Dataset, SparkSession}
import org.apache.spark.sql.execution.streaming.state._
import org.apache.spark.sql.internal.SQLConf
import org.apache.spark.sql.types.StructType
import org.apache.spark.util.SerializableConfiguration

/** Moves the state of a stopped query to another store or to other partitions, and makes the checkpoint with which the
 * query resumes there (docs/decisions/0025). The caller, `dynastate.spark.transfer`, refuses, orders the steps, and
 * resumes what was cut off. Paths are Hadoop's; the old checkpoint and the old state are only read.
 */
object StateTransfer {
  private type Settings = java.util.Map[String, String]
  private type Frames = java.util.Map[String, Dataset[_]]

  /** The checkpoint's folder as a query that starts there names it. */
  def qualified(session: SparkSession, checkpoint: String): String = {
    val (path, conf) = (new Path(checkpoint), session.sessionState.newHadoopConf())
    // As CheckpointFileManager.create chooses; the two may differ in the port.
    def context =
      if (path.toUri.getScheme == null) FileContext.getFileContext(conf)
      else FileContext.getFileContext(path.toUri, conf)
    (try context.makeQualified(path)
    catch { case _: UnsupportedFileSystemException => path.getFileSystem(conf).makeQualified(path) }).toString
  }

  /** The namespace of a query that starts with this checkpoint and sets none. */
  def namespaceOf(session: SparkSession, root: String): String =
    ProviderSettings.digest(
      ProviderSettings.locationOf(QueryCheckpoint.stateRoot(root), session.sessionState.newHadoopConf()))

  /** Describe what can be moved, as JSON: `batch` is the last committed one, `offsets` the last one that was begun; -1
   * means none. The rest is present with a `batch` only.
   */
  def describe(session: SparkSession, root: String): String = {
    val checkpoint = new QueryCheckpoint(session, root)
    val progress = JObject("batch" -> JInt(checkpoint.lastCommitted), "offsets" -> JInt(checkpoint.lastBegun))
    val plan =
      if (checkpoint.lastCommitted < 0) progress
      else {
        val conf = checkpoint.pinned
        progress.merge(JObject(
            "query" -> JString(checkpoint.queryId),
            "provider" -> JString(conf.getConf(SQLConf.STATE_STORE_PROVIDER_CLASS)),
            "ids" -> JBool(checkpoint.ids.nonEmpty),
            "stores" -> JArray(checkpoint.shapes.toList.map(shape =>
                JObject(
                  "operator" -> JInt(shape.operator), "name" -> JString(shape.name),
                  "partitions" -> JInt(shape.partitions), "kind" -> JString(shape.operatorName),
                  "single" -> JBool(shape.isSingle), "families" -> JBool(shape.usesFamilies),
                  "described" -> JArray(shape.described.toList.map(family =>
                      JObject("name" -> JString(family.name), "key" -> parse(family.keySchema.json),
                        "value" -> parse(family.valueSchema.json),
                        "earlier_values" -> JArray(
                          family.earlierSchemas.map(schema => parse(schema.json)).toList)))))))))
      }
    compact(render(plan))
  }

  /** Move the state after the last committed batch, a task for each store, and read it back to compare. With other
   * partitions, or rows from elsewhere, every old store is a task, whose rows a shuffle brings to the new ones. Returns
   * a JSON object for each new store.
   *
   * @param provider   class of the provider that keeps the new stores
   * @param partitions of the new stores; those of the old ones, if it is 0
   * @param from       settings of our provider, by full name, if the old stores are on it
   * @param to         the same of the new stores
   * @param version    of the old stores, whose ids are in `ids`; the checkpoint's, if it is 0
   * @param ids        of old stores' versions, by `operator/partition/name`
   * @param frames     rows of new stores in place of the old ones, by `operator/name`: their columns are `key` and
   *                   `value`
   */
  def move(session: SparkSession, oldRoot: String, newRoot: String, provider: String, partitions: Int, from: Settings,
      to: Settings, version: Long, ids: Settings, frames: Frames): String = {
    val old = new QueryCheckpoint(session, oldRoot)
    val format = if (old.ids.isEmpty) 1 else 2
    val reads, writes = old.pinned
    Seq(reads, writes).foreach { conf =>
      // For queries only: there is no batch here that a coordinator could validate.
      conf.setConf(SQLConf.STATE_STORE_FORMAT_VALIDATION_ENABLED, false)
      conf.setConf(SQLConf.STATE_STORE_COMMIT_VALIDATION_ENABLED, false)
      conf.setConf(SQLConf.STATE_STORE_CHECKPOINT_FORMAT_VERSION, format)
    }
    from.asScala.foreach { case (name, value) => reads.setConfString(name, value) }
    to.asScala.foreach { case (name, value) => writes.setConfString(name, value) }
    writes.setConf(SQLConf.STATE_STORE_PROVIDER_CLASS, provider)
    // So that a store of ours reports the id of its commit.
    if (StoreEnd.isOurs(provider)) writes.setConf(SQLConf.STATE_STORE_CHECKPOINT_FORMAT_VERSION, 2)
    if (!StoreEnd.hasIds(provider)) writes.setConf(SQLConf.STATE_STORE_CHECKPOINT_FORMAT_VERSION, 1)
    if (!ids.isEmpty) reads.setConf(SQLConf.STATE_STORE_CHECKPOINT_FORMAT_VERSION, 2)
    val conf = session.sessionState.newHadoopConf()
    conf.set(ProviderSettings.QueryId, old.queryId)
    val hadoop = new SerializableConfiguration(conf)
    val (source, target) =
      (new StoreEnd(QueryCheckpoint.stateRoot(oldRoot), new StateStoreConf(reads), hadoop, UUID.randomUUID()),
        new StoreEnd(QueryCheckpoint.stateRoot(newRoot), new StateStoreConf(writes), hadoop, UUID.randomUUID()))
    val newVersion = old.lastCommitted + 1
    val transfer = StateTransferTask(source, target, if (version == 0) newVersion else version, newVersion)
    def idOf(shape: StoreShape, partition: Int) =
      if (ids.isEmpty) old.idOf(shape, partition) else Option(ids.get(s"${shape.operator}/$partition/${shape.name}"))
    val stores = for (shape <- old.shapes if !frames.containsKey(shape.path); partition <- 0 until shape.partitions)
      yield StoreAt(shape, partition, idOf(shape, partition))
    val context = session.sparkContext
    val results = if (partitions == 0 && frames.isEmpty)
      context.parallelize(stores, stores.size).map(transfer.copy(_)).collect()
    else {
      val shapes = old.shapes.map(shape => framed(shape, frames)).map(shape =>
        if (partitions == 0) shape else shape.repartitioned(partitions))
      val targets = for (shape <- shapes; partition <- 0 until shape.partitions) yield StoreAt(shape, partition, None)
      val first = targets.zipWithIndex.filter(_._1.partition == 0).map { case (at, index) =>
        at.shape.path -> index
      }.toMap
      val count = shapes.map(shape => shape.path -> shape.partitions).toMap
      def send(store: StoreAt) = transfer.send(store, first(store.shape.path), count(store.shape.path))
      val oldStores = if (stores.isEmpty) Nil else Seq(context.parallelize(stores, stores.size).flatMap(send(_)))
      val newStores = shapes.filter(_.isNew).map { shape =>
        val (start, partitions) = (first(shape.path), shape.partitions)
        frames.get(shape.path).queryExecution.toRdd.mapPartitions(rows =>
          transfer.bring(shape, rows, start, partitions))
      }
      val all = context.union(oldStores ++ newStores)
      val byTarget = all.partitionBy(new ByNumber(targets.size))
      byTarget.mapPartitionsWithIndex((index, packets) => Iterator(transfer.receive(targets(index), packets))).collect()
    }
    compact(render(JArray(results.toList)))
  }

  /** A store with the schema of its frame, if there is one. */
  private def framed(shape: StoreShape, frames: Frames): StoreShape =
    Option(frames.get(shape.path)).fold(shape) { frame =>
      def struct(column: String) = frame.schema(column).dataType.asInstanceOf[StructType]
      shape.withRows(struct("key"), struct("value"))
    }

  /** Make the checkpoint with which the query resumes: the old one without rows, with another provider's class and
   * number of partitions in the offset log and ids of stores in the commit log. The commit log is written last: until
   * then, a query that is started with it finds no state.
   *
   * @param made what `move` returned
   */
  def makeCheckpoint(session: SparkSession, oldRoot: String, newRoot: String, provider: String, partitions: Int,
      made: String, frames: Frames): Unit = {
    val JArray(stores) = parse(made): @unchecked
    val ids = stores.flatMap { each =>
      for (JInt(operator) <- each \ "operator"; JInt(at) <- each \ "partition"; JString(name) <- each \ "name";
        JString(id) <- each \ "id") yield (operator.toLong, at.toInt, name) -> id
    }
    val old = new QueryCheckpoint(session, oldRoot)
    old.copyTo(newRoot, provider, partitions, ids.toMap, old.shapes.map(framed(_, frames)).filter(_.isNew))
  }

  /** A key is the number of its partition. */
  private final class ByNumber(override val numPartitions: Int) extends Partitioner {
    override def getPartition(key: Any): Int = key.asInstanceOf[Int]
  }
}
