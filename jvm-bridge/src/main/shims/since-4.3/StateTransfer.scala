package org.apache.spark.sql.dynastate

import java.util.UUID

import scala.jdk.CollectionConverters._

import io.dynastate.spark.ProviderSettings
import org.apache.hadoop.fs.{FileContext, Path, UnsupportedFileSystemException}
import org.json4s.JsonAST._
import org.json4s.jackson.JsonMethods.{compact, parse, render}

import org.apache.spark.Partitioner
import org.apache.spark.sql.classic.SparkSession
import org.apache.spark.sql.execution.streaming.state._
import org.apache.spark.sql.internal.SQLConf
import org.apache.spark.util.SerializableConfiguration

/**
 * Moves the state of a stopped query to another store or to other partitions, and makes the checkpoint with which the query resumes there
 * (docs/decisions/0026). The caller, `dynastate.spark.transfer`, refuses, orders the steps, and resumes what was cut off. Paths are
 * Hadoop's; the old checkpoint and the old state are only read.
 */
object StateTransfer {

  /** The checkpoint's folder as a query that starts there names it. */
  def qualified(session: SparkSession, checkpoint: String): String = {
    val (path, conf) = (new Path(checkpoint), session.sessionState.newHadoopConf())
    // As CheckpointFileManager.create chooses; the two may differ in the port.
    def context = if (path.toUri.getScheme == null) FileContext.getFileContext(conf) else FileContext.getFileContext(path.toUri, conf)
    (try context.makeQualified(path) catch { case _: UnsupportedFileSystemException => path.getFileSystem(conf).makeQualified(path) }).toString
  }

  /** The namespace of a query that starts with this checkpoint and sets none. */
  def namespaceOf(root: String): String = ProviderSettings.digest(QueryCheckpoint.stateRoot(root))

  /**
   * Describe what can be moved, as JSON: `batch` is the last committed one, `offsets` the last one that was begun; -1 means none. The rest
   * is present with a `batch` only.
   */
  def describe(session: SparkSession, root: String): String = {
    val checkpoint = new QueryCheckpoint(session, root)
    val begun = JObject("batch" -> JInt(checkpoint.lastCommitted), "offsets" -> JInt(checkpoint.lastBegun))
    val described = if (checkpoint.lastCommitted < 0) begun else {
      val conf = checkpoint.pinned
      begun.merge(JObject(
        "query" -> JString(checkpoint.queryId),
        "provider" -> JString(conf.getConf(SQLConf.STATE_STORE_PROVIDER_CLASS)),
        "encoding" -> JString(conf.getConf(SQLConf.STREAMING_STATE_STORE_ENCODING_FORMAT)),
        "ids" -> JBool(checkpoint.ids.nonEmpty),
        "stores" -> JArray(checkpoint.shapes.toList.map(shape => JObject(
          "operator" -> JInt(shape.operator), "name" -> JString(shape.name), "partitions" -> JInt(shape.partitions),
          "kind" -> JString(shape.operatorName), "single" -> JBool(shape.isSingle), "families" -> JBool(shape.usesFamilies))))))
    }
    compact(render(described))
  }

  /**
   * Move the state after the last committed batch, a task for each store, and read it back to compare. With other partitions every old store
   * is a task, whose rows a shuffle brings to the new ones. Returns a JSON object for each new store.
   *
   * @param provider   class of the provider that keeps the new stores
   * @param partitions of the new stores; those of the old ones, if it is 0
   * @param from       settings of our provider, by full name, if the old stores are on it
   * @param to         the same of the new stores
   */
  def move(
      session: SparkSession,
      oldRoot: String,
      newRoot: String,
      provider: String,
      partitions: Int,
      from: java.util.Map[String, String],
      to: java.util.Map[String, String]): String = {
    val old = new QueryCheckpoint(session, oldRoot)
    val format = if (old.ids.isEmpty) 1 else 2
    val reads, writes = old.pinned
    Seq(reads, writes).foreach { conf =>
      // For queries only: here is no batch that a coordinator could validate.
      conf.setConf(SQLConf.STATE_STORE_FORMAT_VALIDATION_ENABLED, false)
      conf.setConf(SQLConf.STATE_STORE_COMMIT_VALIDATION_ENABLED, false)
      conf.setConf(SQLConf.STATE_STORE_CHECKPOINT_FORMAT_VERSION, format)
    }
    from.asScala.foreach { case (name, value) => reads.setConfString(name, value) }
    to.asScala.foreach { case (name, value) => writes.setConfString(name, value) }
    writes.setConf(SQLConf.STATE_STORE_PROVIDER_CLASS, provider)
    // So that a store of ours reports the id of its commit.
    if (StoreEnd.isOurs(provider)) writes.setConf(SQLConf.STATE_STORE_CHECKPOINT_FORMAT_VERSION, 2)
    val conf = session.sessionState.newHadoopConf()
    conf.set(ProviderSettings.QueryId, old.queryId)
    val hadoop = new SerializableConfiguration(conf)
    val (source, target) = (
      new StoreEnd(QueryCheckpoint.stateRoot(oldRoot), new StateStoreConf(reads), hadoop, s"transfer-${UUID.randomUUID()}"),
      new StoreEnd(QueryCheckpoint.stateRoot(newRoot), new StateStoreConf(writes), hadoop, s"transfer-${UUID.randomUUID()}"))
    val transfer = StateTransferTask(source, target, old.lastCommitted + 1)
    val stores = for (shape <- old.shapes; partition <- 0 until shape.partitions) yield StoreAt(shape, partition, old.idOf(shape, partition))
    val context = session.sparkContext
    val done = if (partitions == 0) context.parallelize(stores, stores.size).map(transfer.copy(_)).collect()
    else {
      val targets = for (shape <- old.shapes.map(_.repartitioned(partitions)); partition <- 0 until shape.partitions)
        yield StoreAt(shape, partition, None)
      val first = targets.zipWithIndex.filter(_._1.partition == 0).map { case (at, index) => at.shape.key -> index }.toMap
      val sent = context.parallelize(stores, stores.size).flatMap(store => transfer.send(store, first(store.shape.key), partitions))
      sent.partitionBy(new ByNumber(targets.size)).mapPartitionsWithIndex((index, chunks) => Iterator(transfer.receive(targets(index), chunks))).collect()
    }
    compact(render(JArray(done.toList)))
  }

  /**
   * Make the checkpoint with which the query resumes: the old one without rows, with another provider's class and number of partitions in
   * the offset log and ids of stores in the commit log. The commit log is written last: until then, a query that is started with it finds no
   * state.
   *
   * @param made what `move` returned
   */
  def makeCheckpoint(session: SparkSession, oldRoot: String, newRoot: String, provider: String, partitions: Int, made: String): Unit = {
    val JArray(stores) = parse(made): @unchecked
    val ids = stores.flatMap { each =>
      for (JInt(operator) <- each \ "operator"; JInt(at) <- each \ "partition"; JString(name) <- each \ "name"; JString(id) <- each \ "id")
        yield (operator.toLong, at.toInt, name) -> id
    }
    new QueryCheckpoint(session, oldRoot).copyTo(newRoot, provider, partitions, ids.toMap)
  }

  /** A key is the number of its partition. */
  private final class ByNumber(override val numPartitions: Int) extends Partitioner {
    override def getPartition(key: Any): Int = key.asInstanceOf[Int]
  }
}
