package org.apache.spark.sql.dynastate

import java.nio.charset.StandardCharsets.UTF_8
import java.util.UUID

import scala.jdk.CollectionConverters._
import scala.util.matching.Regex

import io.dynastate.{DynastateException, ErrorKind}
import io.dynastate.spark.{ColumnFamily, DynamoDBStateStoreProvider, ProviderSettings}
import org.apache.hadoop.conf.Configuration
import org.apache.hadoop.fs.{FileContext, FileSystem, FileUtil, Path, UnsupportedFileSystemException}
import org.json4s.JsonAST._
import org.json4s.jackson.JsonMethods.{compact, render}

import org.apache.spark.sql.catalyst.expressions.{UnsafeRow, XXH64}
import org.apache.spark.sql.classic.SparkSession
import org.apache.spark.sql.execution.datasources.v2.state.metadata.StateMetadataPartitionReader
import org.apache.spark.sql.execution.streaming.checkpointing._
import org.apache.spark.sql.execution.streaming.operators.stateful.StatefulOperatorsUtils
import org.apache.spark.sql.execution.streaming.operators.stateful.join.SymmetricHashJoinStateManager
import org.apache.spark.sql.execution.streaming.operators.stateful.transformwithstate._
import org.apache.spark.sql.execution.streaming.state._
import org.apache.spark.sql.internal.SQLConf
import org.apache.spark.sql.types.{NullType, StructField, StructType}
import org.apache.spark.util.SerializableConfiguration

/**
 * Imports a query's state from Spark's own stores into DynamoDB, and makes the checkpoint with which the query resumes there
 * (docs/import.md). The caller, `dynastate.spark.importing`, refuses, orders the steps, and resumes what was cut off. Paths are Hadoop's;
 * the old checkpoint is only read.
 */
object CheckpointImport {
  private val Descriptions = Set("_metadata", "_stateSchema")
  /** `{state root}/{operator}/_stateSchema/{store}/{file}` in JSON. */
  private val SchemaPath = """[^"\\]*/\d+/_stateSchema/[^"/\\]+/[^"/\\]+""".r

  /** The checkpoint's folder as a query that starts there names it. */
  def qualified(session: SparkSession, checkpoint: String): String = {
    val (path, conf) = (new Path(checkpoint), hadoopConf(session))
    // As CheckpointFileManager.create chooses; the two may differ in the port.
    def context = if (path.toUri.getScheme == null) FileContext.getFileContext(conf) else FileContext.getFileContext(path.toUri, conf)
    (try context.makeQualified(path) catch { case _: UnsupportedFileSystemException => path.getFileSystem(conf).makeQualified(path) }).toString
  }

  /** The namespace of a query that starts with this checkpoint and sets none. */
  def namespaceOf(root: String): String = ProviderSettings.digest(stateRoot(root))

  /**
   * Describe what can be imported, as JSON: `batch` is the last committed one, `offsets` the last one that was begun; -1 means none. The
   * rest is present with a `batch` only.
   */
  def describe(session: SparkSession, root: String): String = {
    val batch = commitLog(session, root, readOnly = true).getLatestBatchId().getOrElse(-1L)
    val offsets = offsetLog(session, root, readOnly = true)
    val last = offsets.getLatestBatchId().getOrElse(-1L)
    val begun = JObject("batch" -> JInt(batch), "offsets" -> JInt(last))
    val described = if (batch < 0) begun else {
      val conf = pinned(session, offsets, batch)
      val stores = shapes(session, root, batch)
      begun.merge(JObject(
        "query" -> JString(queryId(session, root)),
        "provider" -> JString(conf.getConf(SQLConf.STATE_STORE_PROVIDER_CLASS)),
        "encoding" -> JString(conf.getConf(SQLConf.STREAMING_STATE_STORE_ENCODING_FORMAT)),
        "stores" -> JArray(stores.toList.map(shape => JObject(
          "operator" -> JInt(shape.operator), "name" -> JString(shape.name), "partitions" -> JInt(shape.partitions))))))
    }
    compact(render(described))
  }

  /**
   * Import the state after a batch, a task for each store, and read it back to compare. Returns a JSON object for each store.
   *
   * @param settings our provider's settings, by full name
   */
  def importState(session: SparkSession, oldRoot: String, newRoot: String, batch: Long, settings: java.util.Map[String, String]): String = {
    val offsets = offsetLog(session, oldRoot, readOnly = true)
    val from, to = pinned(session, offsets, batch)
    val ids = commitLog(session, oldRoot, readOnly = true).get(batch).flatMap(_.stateUniqueIds)
    Seq(from, to).foreach { conf =>
      // For queries only: here is no batch that a coordinator could validate.
      conf.setConf(SQLConf.STATE_STORE_FORMAT_VALIDATION_ENABLED, false)
      conf.setConf(SQLConf.STATE_STORE_COMMIT_VALIDATION_ENABLED, false)
    }
    from.setConf(SQLConf.STATE_STORE_CHECKPOINT_FORMAT_VERSION, if (ids.isEmpty) 1 else 2)
    to.setConf(SQLConf.STATE_STORE_CHECKPOINT_FORMAT_VERSION, 2) // so that a store reports the id of its commit
    settings.asScala.foreach { case (name, value) => to.setConfString(name, value) }
    to.setConf(SQLConf.STATE_STORE_PROVIDER_CLASS, classOf[DynamoDBStateStoreProvider].getName)
    val own = hadoopConf(session)
    own.set(ProviderSettings.QueryId, queryId(session, oldRoot))
    val job = ImportJob(
      stateRoot(oldRoot), stateRoot(newRoot), batch + 1, new StateStoreConf(from), new StateStoreConf(to),
      new SerializableConfiguration(own), s"import-${UUID.randomUUID()}")
    val tasks = for (shape <- shapes(session, oldRoot, batch); partition <- 0 until shape.partitions)
      yield StoreImport(shape, partition, idOf(shape, partition, ids))
    val done = session.sparkContext.parallelize(tasks, tasks.size).map(job.run(_)).collect()
    compact(render(JArray(done.toList)))
  }

  /**
   * Make the checkpoint with which the query resumes: the old one without rows, with our provider's class in the offset log and ids of
   * stores in the commit log. The commit log is written last: until then, a query that is started with it finds no state.
   *
   * @param ids new ids of stores, by the ids in the old commit log
   */
  def makeCheckpoint(session: SparkSession, oldRoot: String, newRoot: String, batch: Long, ids: java.util.Map[String, String]): Unit = {
    val (oldOffsets, newOffsets) = (offsetLog(session, oldRoot, readOnly = true), offsetLog(session, newRoot, readOnly = false))
    // Spark begins with the last two batches.
    val begun = oldOffsets.listBatchesOnDisk.filter(_ >= batch - 1).sorted
    begun.foreach(number => mustBeNew(newOffsets.add(number, onOurs(oldOffsets.get(number).get)), newRoot))

    val conf = hadoopConf(session)
    val (oldPath, newPath) = (new Path(oldRoot), new Path(newRoot))
    val (oldFiles, newFiles) = (oldPath.getFileSystem(conf), newPath.getFileSystem(conf))
    val apart = Set("offsets", "commits", "state")
    oldFiles.listStatus(oldPath).map(_.getPath).filterNot(path => apart(path.getName)).foreach { path =>
      FileUtil.copy(oldFiles, path, newFiles, new Path(newPath, path.getName), false, conf)
    }
    copyDescriptions(new Path(stateRoot(oldRoot)), new Path(stateRoot(newRoot)), conf)

    val committed = commitLog(session, oldRoot, readOnly = true).get(batch).get
    def ours(id: String) = Option(ids.get(id)).getOrElse(throw new DynastateException(
      ErrorKind.Internal, s"a store that the commit log names was not imported batch=$batch id=$id"))
    val renamed = committed.stateUniqueIds.map(_.map { case (operator, partitions) => operator -> partitions.map(_.map(ours)) })
    val ended = commitLog(session, newRoot, readOnly = false).add(batch, if (renamed.isEmpty) committed else committed.withStateUniqueIds(renamed))
    mustBeNew(ended, newRoot)
  }

  // ------------------------------------------------------------------------------------------------------------ description

  private def hadoopConf(session: SparkSession): Configuration = session.sessionState.newHadoopConf()

  private[dynastate] def stateRoot(root: String): String = new Path(root, "state").toString

  private def offsetLog(session: SparkSession, root: String, readOnly: Boolean): OffsetSeqLog =
    new OffsetSeqLog(session, new Path(root, "offsets").toString, readOnly)

  private def commitLog(session: SparkSession, root: String, readOnly: Boolean): CommitLog =
    new CommitLog(session, new Path(root, "commits").toString, readOnly)

  private def queryId(session: SparkSession, root: String): String = {
    val path = new Path(root, "metadata")
    org.apache.spark.sql.execution.streaming.runtime.StreamMetadata.read(path, hadoopConf(session)).map(_.id).getOrElse("")
  }

  /** The conf that a batch was planned with. */
  private def pinned(session: SparkSession, offsets: OffsetSeqLog, batch: Long): SQLConf = {
    val conf = session.sessionState.conf.clone()
    val metadata = offsets.get(batch).flatMap(_.metadataOpt).getOrElse(throw new DynastateException(
      ErrorKind.Configuration, s"the offset log of the checkpoint does not hold its last committed batch batch=$batch"))
    OffsetSeqMetadata.setSessionConf(metadata, conf)
    conf
  }

  private def shapes(session: SparkSession, root: String, batch: Long): Seq[StoreShape] = {
    val conf = hadoopConf(session)
    new StateMetadataPartitionReader(root, new SerializableConfiguration(conf), batch).allOperatorStateMetadata.toSeq.flatMap { operator =>
      val lists = operator match {
        case known: OperatorStateMetadataV2 if StatefulOperatorsUtils.TRANSFORM_WITH_STATE_OP_NAMES.contains(known.operatorInfo.operatorName) =>
          TransformWithStateOperatorProperties.fromJson(known.operatorPropertiesJson).stateVariables
            .filter(_.stateVariableType == StateVariableType.ListState).map(_.stateName).toSet
        case _ => Set.empty[String]
      }
      operator.stateStoresMetadata.map { store =>
        val id = StateStoreId(stateRoot(root), operator.operatorInfo.operatorId, StateStore.PARTITION_ID_TO_CHECK_SCHEMA, store.storeName)
        val (files, prefix) = store match {
          case first: StateStoreMetadataV1 => (Nil, first.numColsPrefixKey)
          case second: StateStoreMetadataV2 => (second.stateSchemaFilePaths.map(path => new Path(within(stateRoot(root), path))), 0)
        }
        val read = new StateSchemaCompatibilityChecker(StateStoreProviderId(id, UUID.randomUUID()), conf, files).readSchemaFile()
        val families = read.map { each =>
          val spec = each.keyStateEncoderSpec.getOrElse(
            if (prefix > 0) PrefixKeyScanStateEncoderSpec(each.keySchema, prefix) else NoPrefixKeyStateEncoderSpec(each.keySchema))
          ColumnFamily(each.colFamilyName, spec, each.valueSchema, isList(each.colFamilyName, lists), isInternal(each.colFamilyName))
        }
        // An operator that needs all rows together has one partition, whatever its metadata says.
        val needsAll = operator.operatorInfo.operatorName == "globalLimit" || read.exists(_.keySchema.isEmpty) ||
          (operator.operatorInfo.operatorName.startsWith("sessionWindow") && store.numColsPrefixKey == 0)
        val partitions = if (needsAll) 1 else store.numPartitions
        mustBeThere(new Path(stateRoot(root), id.operatorId.toString), partitions, conf)
        StoreShape(id.operatorId, store.storeName, partitions, families)
      }
    }
  }

  private def mustBeThere(operator: Path, partitions: Int, conf: Configuration): Unit = {
    val found = operator.getFileSystem(conf).listStatus(operator).map(_.getPath.getName).flatMap(_.toIntOption).sorted.toSeq
    if (found != (0 until partitions)) {
      throw new DynastateException(ErrorKind.Configuration, "folders of partitions are gone from the old checkpoint, or there are too many; nothing " +
        s"was imported folder=$operator partitions=$partitions found=${found.mkString(",")}")
    }
  }

  /** Families with lists: list state, and values by time of joins of state format 4. */
  private def isList(family: String, lists: Set[String]): Boolean =
    lists.contains(family) || family.endsWith("-keyWithTsToValues") || family.endsWith("-tsWithKey")

  private def isInternal(family: String): Boolean =
    StateStoreColumnFamilySchemaUtils.isInternalColFamily(family) || family.endsWith("-tsWithKey") || family.endsWith("-keyToNumValues")

  private def idOf(shape: StoreShape, partition: Int, ids: Option[Map[Long, Array[Array[String]]]]): Option[String] =
    SymmetricHashJoinStateManager.getStateStoreCheckpointId(shape.name, partition, ids.flatMap(_.get(shape.operator)))

  // ------------------------------------------------------------------------------------------------------- the new checkpoint

  private def onOurs(begun: OffsetSeqBase): OffsetSeqBase = {
    def changed(conf: Map[String, String]) = conf + (SQLConf.STATE_STORE_PROVIDER_CLASS.key -> classOf[DynamoDBStateStoreProvider].getName)
    begun match {
      case first: OffsetSeq => first.copy(metadataOpt = first.metadataOpt.map(each => each.copy(conf = changed(each.conf))))
      case second: OffsetMap => second.copy(metadata = second.metadata.copy(conf = changed(second.metadata.conf)))
      case other => throw new DynastateException(ErrorKind.Configuration, s"an offset log of this kind is not known kind=${other.getClass.getName}")
    }
  }

  private def mustBeNew(isNew: Boolean, newRoot: String): Unit = if (!isNew) {
    throw new DynastateException(ErrorKind.Configuration,
      s"another import writes this checkpoint at the same time; let it end, or delete the folder, and import again checkpoint=$newRoot")
  }

  /** Copy the descriptions of operators and rows. Operators' metadata name the files of schemas by full path. */
  private def copyDescriptions(from: Path, to: Path, conf: Configuration): Unit = {
    val (oldFiles, newFiles) = (from.getFileSystem(conf), to.getFileSystem(conf))
    def copy(folder: Path, target: Path, isDescription: Boolean): Unit = oldFiles.listStatus(folder).foreach { status =>
      val (path, copied) = (status.getPath, new Path(target, status.getPath.getName))
      if (status.isDirectory) copy(path, copied, isDescription || Descriptions(path.getName))
      // Without its checksum, which is that of the old paths; Spark then checks none.
      else if (isDescription && !path.getName.endsWith(".crc")) {
        if (folder.getName == "v2") {
          val moved = SchemaPath.replaceAllIn(read(oldFiles, path), found => Regex.quoteReplacement(within(to.toString, found.matched)))
          write(newFiles, copied, moved)
        }
        else FileUtil.copy(oldFiles, path, newFiles, copied, false, conf)
      }
    }
    copy(from, to, isDescription = false)
  }

  /** The current path of a schema file: the stored one has the scheme and the folder that the checkpoint had then. */
  private def within(root: String, path: String): String = s"$root/${path.split('/').takeRight(4).mkString("/")}"

  private def read(files: FileSystem, path: Path): String = {
    val in = files.open(path)
    try new String(in.readAllBytes(), UTF_8) finally in.close()
  }

  private def write(files: FileSystem, path: Path, text: String): Unit = {
    val out = files.create(path, true)
    try out.write(text.getBytes(UTF_8)) finally out.close()
  }
}

/** A store of an operator, the same in each partition. Without column families it has the default one only. */
private[dynastate] final case class StoreShape(operator: Long, name: String, partitions: Int, families: Seq[ColumnFamily]) {
  private val Default = StateStore.DEFAULT_COL_FAMILY_NAME

  val others: Seq[ColumnFamily] = families.filter(_.name != Default)

  def usesFamilies: Boolean = others.nonEmpty

  /** The default family of an operator that does not describe it, and has no rows in it. */
  def default: ColumnFamily = families.find(_.name == Default).getOrElse {
    val none = StructType(Array(StructField("__dummy__", NullType)))
    ColumnFamily(Default, NoPrefixKeyStateEncoderSpec(none), none, multipleValues = false, internal = false)
  }
}

/** One store of one partition, and the id of its version in the old checkpoint, if that has ids. */
private[dynastate] final case class StoreImport(shape: StoreShape, partition: Int, id: Option[String])

/** Content of a store: values, their bytes with those of their keys, and a digest that does not depend on the order of keys. */
private[dynastate] final class Content {
  var rows, bytes, digest = 0L

  def add(family: String, key: UnsafeRow, value: UnsafeRow, place: Int): Unit = {
    rows += 1
    bytes += key.getSizeInBytes + value.getSizeInBytes
    val ofKey = XXH64.hashUnsafeBytes(key.getBaseObject, key.getBaseOffset, key.getSizeInBytes, family.hashCode.toLong << 32 | place)
    digest += XXH64.hashUnsafeBytes(value.getBaseObject, value.getBaseOffset, value.getSizeInBytes, ofKey)
  }

  def same(other: Content): Boolean = (rows, bytes, digest) == (other.rows, other.bytes, other.digest)
}

/** Shared data of the tasks of an import. `version` is the one to import. */
private[dynastate] final case class ImportJob(
    oldRoot: String, newRoot: String, version: Long, from: StateStoreConf, to: StateStoreConf, hadoopConf: SerializableConfiguration, run: String) {

  /**
   * 1. Read the version from Spark's own store, and write its rows into an empty one of ours. (Crash: orphans of a snapshot.)
   * 2. Commit it, as a version without a parent. (Crash: a version that no checkpoint names.)
   * 3. Read it back from the tables, and compare.
   */
  def run(store: StoreImport): JValue = {
    val started = System.nanoTime()
    val written = new Content
    var metrics = Map.empty[String, Long]
    var id = ""
    mustBeThere(store)
    reading(store, oldRoot, from, store.id) { rows =>
      withProvider(store, newRoot, to, run) { ours =>
        val target = ours.getStore(version - 1, None, forceSnapshotOnCommit = false, loadEmpty = true)
        try {
          store.shape.others.foreach(each => target.createColFamilyIfAbsent(
            each.name, each.keySchema, each.valueSchema, each.spec, each.multipleValues, each.internal))
          foreachRow(rows, store.shape) { (family, key, value, place) =>
            written.add(family.name, key, value, place)
            if (place > 0) target.merge(key, value, family.name) else target.put(key, value, family.name)
          } // 1
          target.commit() // 2
        } finally if (!target.hasCommitted) target.abort()
        id = target.getStateStoreCheckpointInfo().stateStoreCkptId.get
        metrics = target.metrics.customMetrics.map { case (metric, value) => metric.name -> value }
      }
    }
    val found = new Content
    reading(store, newRoot, to, Some(id)) { rows =>
      foreachRow(rows, store.shape)((family, key, value, place) => found.add(family.name, key, value, place))
    } // 3
    if (!written.same(found)) {
      throw new DynastateException(ErrorKind.Corrupt, s"what was read back is not what was written; nothing was imported operator=${store.shape.operator} " +
        s"partition=${store.partition} store=${store.shape.name} written=${written.rows} found=${found.rows}")
    }
    JObject(
      "operator" -> JInt(store.shape.operator), "partition" -> JInt(store.partition), "name" -> JString(store.shape.name),
      "rows" -> JInt(written.rows), "bytes" -> JInt(written.bytes), "write_units" -> JInt(metrics("dynastateWriteUnits")),
      "bytes_written" -> JInt(metrics("dynastateBytesWritten")), "ms" -> JInt((System.nanoTime() - started) / 1000000),
      "id" -> JString(id), "old_id" -> store.id.fold[JValue](JNull)(JString(_)))
  }

  /** Spark's providers make the folder that they read, if it is missing. */
  private def mustBeThere(store: StoreImport): Unit = {
    val folder = idOf(store, oldRoot).storeCheckpointLocation()
    if (!folder.getFileSystem(hadoopConf.value).exists(folder)) {
      throw new DynastateException(ErrorKind.Configuration, s"the folder of a store is gone from the old checkpoint; nothing was imported folder=$folder")
    }
  }

  private def idOf(store: StoreImport, root: String): StateStoreId =
    StateStoreId(root, store.shape.operator, store.partition, store.shape.name)

  private def withProvider(store: StoreImport, root: String, conf: StateStoreConf, run: String)(use: StateStoreProvider => Unit): Unit = {
    val own = new Configuration(hadoopConf.value)
    own.set("sql.streaming.runId", run)
    val default = store.shape.default
    val provider = StateStoreProvider.createAndInit(
      StateStoreProviderId(idOf(store, root), UUID.randomUUID()), default.keySchema, default.valueSchema, default.spec, store.shape.usesFamilies, conf, own,
      default.multipleValues, None)
    try use(provider) finally provider.close()
  }

  /** Release rows after any error: closing RocksDB before would wait for that, and hide the error. */
  private def reading(store: StoreImport, root: String, conf: StateStoreConf, id: Option[String])(use: ReadStateStore => Unit): Unit =
    withProvider(store, root, conf, run) { provider =>
      val rows = provider.getReadStore(version, id)
      try {
        val unknown = rows.allColumnFamilyNames -- store.shape.families.map(_.name) - StateStore.DEFAULT_COL_FAMILY_NAME
        if (unknown.nonEmpty) {
          throw new DynastateException(ErrorKind.Configuration, "the state has column families that the checkpoint does not describe; nothing " +
            s"was imported operator=${store.shape.operator} partition=${store.partition} families=${unknown.mkString(",")}")
        }
        store.shape.others.foreach(each => rows.registerColFamily(
          each.name, each.keySchema, each.valueSchema, each.spec, each.multipleValues, each.internal))
        use(rows)
      } finally rows.release()
    }

  /** Every value of every family; `place` counts the values of a key's list. */
  private def foreachRow(store: ReadStateStore, shape: StoreShape)(take: (ColumnFamily, UnsafeRow, UnsafeRow, Int) => Unit): Unit =
    (shape.default +: shape.others).foreach { family =>
      val pairs = if (family.multipleValues) store.iteratorWithMultiValues(family.name) else store.iterator(family.name)
      var before: UnsafeRow = null
      var place = 0
      try pairs.foreach { pair =>
        if (family.multipleValues) {
          place = if (pair.key == before) place + 1 else 0
          if (place == 0) before = pair.key.copy()
        }
        take(family, pair.key, pair.value, place)
      } finally pairs.close()
    }
}
