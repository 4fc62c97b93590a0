package org.apache.spark.sql.dynastate

import java.nio.charset.StandardCharsets.UTF_8
import java.util.UUID

import scala.util.Using
import scala.util.matching.Regex

import io.dynastate.{DynastateException, ErrorKind}
import io.dynastate.spark.ColumnFamily
import org.apache.hadoop.conf.Configuration
import org.apache.hadoop.fs.{FileSystem, FileUtil, Path}

import org.apache.spark.sql.classic.SparkSession
import org.apache.spark.sql.execution.datasources.v2.state.metadata.StateMetadataPartitionReader
import org.apache.spark.sql.execution.streaming.checkpointing._
import org.apache.spark.sql.execution.streaming.operators.stateful.StatefulOperatorsUtils
import org.apache.spark.sql.execution.streaming.operators.stateful.join.SymmetricHashJoinStateManager
import org.apache.spark.sql.execution.streaming.operators.stateful.join.StreamingSymmetricHashJoinHelper.{
  LeftSide, RightSide
}
import org.apache.spark.sql.execution.streaming.operators.stateful.transformwithstate._
import org.apache.spark.sql.execution.streaming.runtime.StreamMetadata
import org.apache.spark.sql.execution.streaming.state._
import org.apache.spark.sql.internal.SQLConf
import org.apache.spark.util.SerializableConfiguration

/** A stopped query's checkpoint, read by Spark's own classes. It is not changed; `copyTo` makes another one of it. */
private[dynastate] final class QueryCheckpoint(session: SparkSession, root: String) {
  import QueryCheckpoint._

  private val conf: Configuration = session.sessionState.newHadoopConf()
  private val offsets = offsetLog(root, readOnly = true)
  private val commits = commitLog(root, readOnly = true)

  /** The last batch that was committed, and the last that was begun; -1: none. */
  val lastCommitted: Long = commits.getLatestBatchId().getOrElse(-1L)
  val lastBegun: Long = offsets.getLatestBatchId().getOrElse(-1L)

  def queryId: String = StreamMetadata.read(new Path(root, "metadata"), conf).map(_.id).getOrElse("")

  /** Ids of the stores' versions after the last committed batch; none with checkpoint format v1. */
  lazy val ids: Option[Ids] = commits.get(lastCommitted).flatMap(_.stateUniqueIds)

  def idOf(shape: StoreShape, partition: Int): Option[String] =
    SymmetricHashJoinStateManager.getStateStoreCheckpointId(shape.name, partition, ids.flatMap(_.get(shape.operator)))

  /** A new copy of the conf that the last committed batch was planned with. */
  def pinned: SQLConf = {
    val copy = session.sessionState.conf.clone()
    OffsetSeqMetadata.setSessionConf(batchMetadata, copy)
    copy
  }

  private def batchMetadata: OffsetSeqMetadataBase =
    offsets.get(lastCommitted).flatMap(_.metadataOpt).getOrElse(throw new DynastateException(ErrorKind.Configuration,
        s"the offset log of the checkpoint does not hold its last committed batch batch=$lastCommitted"))

  private lazy val isAvro = pinned.getConf(SQLConf.STREAMING_STATE_STORE_ENCODING_FORMAT) == "avro"

  /** The stores of every operator, the same in each partition. */
  lazy val shapes: Seq[StoreShape] = if (isOfSpark35) shapesOfSpark35 else describedShapes

  /** Since 4.0 Spark pins the encoding of state for every query, and describes operators. */
  private def isOfSpark35: Boolean = !batchMetadata.conf.contains(SQLConf.STREAMING_STATE_STORE_ENCODING_FORMAT.key)

  /** Spark 3.5 describes the rows of each store, in its first partition, and not the operators. */
  private def shapesOfSpark35: Seq[StoreShape] = {
    val numbers = namesIn(new Path(stateRoot(root))).flatMap(_.toLongOption).sorted
    numbers.flatMap { id =>
      val first = new Path(stateRoot(root), s"$id/${StateStore.PARTITION_ID_TO_CHECK_SCHEMA}")
      val names = (namesIn(first) :+ StateStoreId.DEFAULT_STORE_NAME).filter(hasSchema(id, _)).sorted
      val joined = SymmetricHashJoinStateManager.allStateStoreNames(LeftSide, RightSide)
      val missing = if (names.isEmpty) Seq(StateStoreId.DEFAULT_STORE_NAME) else joined.filterNot(names.contains)
      if (names.isEmpty || (missing.nonEmpty && missing.size < joined.size)) {
        throw new DynastateException(ErrorKind.Configuration,
          "the checkpoint does not describe the rows of a store; restore its folder _metadata in partition 0 " +
            s"operator=$id stores=${missing.mkString(",")}")
      }
      names.map { name =>
        val description = Spark35Store(readSchemas(id, name, Nil).head, name)
        val partitions = if (description.isSingle) 1 else batchMetadata.conf(SQLConf.SHUFFLE_PARTITIONS.key).toInt
        mustBeThere(new Path(stateRoot(root), id.toString), partitions)
        StoreShape(id, description.operatorName, name, partitions, description.isSingle, Seq(description.family), Nil,
          None)
      }
    }
  }

  private def hasSchema(operator: Long, store: String): Boolean = {
    val file = StateSchemaCompatibilityChecker.schemaFile(describingStore(operator, store).storeCheckpointLocation())
    file.getFileSystem(conf).exists(file)
  }

  private def namesIn(folder: Path): Seq[String] = {
    val files = folder.getFileSystem(conf)
    if (files.exists(folder)) files.listStatus(folder).map(_.getPath.getName).toSeq else Nil
  }

  private def describingStore(operator: Long, store: String): StateStoreId =
    StateStoreId(stateRoot(root), operator, StateStore.PARTITION_ID_TO_CHECK_SCHEMA, store)

  private def readSchemas(operator: Long, store: String, files: List[Path]): List[StateStoreColFamilySchema] =
    new StateSchemaCompatibilityChecker(StateStoreProviderId(describingStore(operator, store), UUID.randomUUID()), conf,
      files).readSchemaFile()

  private def describedShapes: Seq[StoreShape] =
    new StateMetadataPartitionReader(root, new SerializableConfiguration(conf),
      lastCommitted).allOperatorStateMetadata.toSeq.flatMap { operator =>
      val (id, name) = (operator.operatorInfo.operatorId, operator.operatorInfo.operatorName)
      val variables = operator match {
        case v2: OperatorStateMetadataV2 if StatefulOperatorsUtils.TRANSFORM_WITH_STATE_OP_NAMES.contains(name) =>
          TransformWithStateOperatorProperties.fromJson(v2.operatorPropertiesJson).stateVariables
        case _ => Nil
      }
      val lists = variables.filter(_.stateVariableType == StateVariableType.ListState).map(_.stateName).toSet
      operator.stateStoresMetadata.map { store =>
        val (files, prefix) = store match {
          case first: StateStoreMetadataV1 => (Nil, first.numColsPrefixKey)
          case second: StateStoreMetadataV2 =>
            (second.stateSchemaFilePaths.map(path => new Path(within(stateRoot(root), path))), 0)
        }
        val read = readSchemas(id, store.storeName, files)
        val families = read.map { each =>
          val spec = each.keyStateEncoderSpec.getOrElse(
            if (prefix > 0) PrefixKeyScanStateEncoderSpec(each.keySchema, prefix)
            else NoPrefixKeyStateEncoderSpec(each.keySchema))
          ColumnFamily(each.colFamilyName, spec, each.valueSchema, isList(each.colFamilyName, lists),
            isInternal(each.colFamilyName))
        }
        // An operator that needs all rows together has one partition, whatever its metadata says.
        val isSingle = name == "globalLimit" || read.exists(_.keySchema.isEmpty) ||
          (name.startsWith("sessionWindow") && store.numColsPrefixKey == 0)
        val partitions = if (isSingle) 1 else store.numPartitions
        mustBeThere(new Path(stateRoot(root), id.toString), partitions)
        val schemas = Option.when(isAvro && files.nonEmpty)(new InMemoryStateSchemaProvider(
            StateSchemaMetadata.createStateSchemaMetadata(stateRoot(root), conf, files.map(_.toString))))
        StoreShape(id, name, store.storeName, partitions, isSingle, families, variables, schemas)
      }
    }

  private def mustBeThere(operator: Path, partitions: Int): Unit = {
    val numbers =
      operator.getFileSystem(conf).listStatus(operator).map(_.getPath.getName).flatMap(_.toIntOption).sorted.toSeq
    if (numbers != (0 until partitions)) throw new DynastateException(ErrorKind.Configuration,
      "folders of partitions are gone from the old checkpoint, or there are too many; nothing " +
        s"was written folder=$operator partitions=$partitions found=${numbers.mkString(",")}")
  }

  /** Families with lists: list state, and values by time of joins of state format 4. */
  private def isList(family: String, lists: Set[String]): Boolean =
    lists.contains(family) || family.endsWith("-keyWithTsToValues") || family.endsWith("-tsWithKey")

  private def isInternal(family: String): Boolean = StateStoreColumnFamilySchemaUtils.isInternalColFamily(family) ||
    family.endsWith("-tsWithKey") || family.endsWith("-keyToNumValues")

  /** Make a checkpoint of it for state that was moved: without rows, and with its commit log last.
   *
   * @param made    ids of the new stores' versions, by operator, partition and store
   * @param changed stores with other schemas
   */
  def copyTo(newRoot: String, provider: String, partitions: Int, newIds: Map[(Long, Int, String), String],
      newShapes: Seq[StoreShape]): Unit = {
    val newOffsets = offsetLog(newRoot, readOnly = false)
    // Spark begins with the last two batches.
    val batches = offsets.listBatchesOnDisk.filter(_ >= lastCommitted - 1).sorted
    batches.foreach(number =>
      mustBeNew(newOffsets.add(number, moved(offsets.get(number).get, provider, partitions)), newRoot))

    val (oldPath, newPath) = (new Path(root), new Path(newRoot))
    val (oldFiles, newFiles) = (oldPath.getFileSystem(conf), newPath.getFileSystem(conf))
    oldFiles.listStatus(oldPath).map(_.getPath).filterNot(path => isApart(path.getName)).foreach { path =>
      FileUtil.copy(oldFiles, path, newFiles, new Path(newPath, path.getName), false, conf)
    }
    copyDescriptions(new Path(stateRoot(root)), new Path(stateRoot(newRoot)),
      shapes.filterNot(_.isSingle).map(_.operator).toSet, partitions)
    newShapes.foreach(describe(newRoot, _))

    val last = commits.get(lastCommitted).get
    val idsByOperator = ids.filter(_ => StoreEnd.hasIds(provider)).map(_.map { case (operator, oldIds) =>
      operator -> idsOf(operator, oldIds, partitions, newIds)
    })
    // Spark resumes with the checkpoint format that the kind of the last commit shows: v2 is that of ids.
    val commit = last match {
      case _: CommitMetadataV2 if idsByOperator.isEmpty => CommitMetadata(last.nextBatchWatermarkMs)
      case other => other.withStateUniqueIds(idsByOperator)
    }
    val isAdded = commitLog(newRoot, readOnly = false).add(lastCommitted, commit)
    mustBeNew(isAdded, newRoot)
  }

  /** Replace the description of a store's rows, which has no column families. */
  private def describe(newRoot: String, shape: StoreShape): Unit = {
    val id = StateStoreId(stateRoot(newRoot), shape.operator, StateStore.PARTITION_ID_TO_CHECK_SCHEMA, shape.name)
    val checker = new StateSchemaCompatibilityChecker(StateStoreProviderId(id, UUID.randomUUID()), conf)
    val file = StateSchemaCompatibilityChecker.schemaFile(id.storeCheckpointLocation())
    file.getFileSystem(conf).delete(file, false)
    val family = shape.default
    val schema = StateStoreColFamilySchema(family.name, 0, family.keySchema, 0, family.valueSchema)
    checker.createSchemaFile(List(schema), SchemaHelper.SchemaWriter.createSchemaWriter(WithoutFamilies))
  }

  /** Ids of an operator's new stores, in the order in which the commit log has those of a partition. */
  private def idsOf(operator: Long, oldIds: Array[Array[String]], partitions: Int,
      newIds: Map[(Long, Int, String), String]): Array[Array[String]] = {
    val ownShapes = shapes.filter(_.operator == operator)
    val count = if (partitions == 0) oldIds.length else ownShapes.head.repartitioned(partitions).partitions
    // Spark answers with the place of a store, when the ids are places.
    val places = Some(Array(oldIds.head.indices.map(_.toString).toArray))
    Array.tabulate(count) { at =>
      def place(shape: StoreShape) =
        SymmetricHashJoinStateManager.getStateStoreCheckpointId(shape.name, 0, places).get.toInt
      val ids = ownShapes.map(shape => place(shape) -> newIds((operator, at, shape.name))).toMap
      Array.tabulate(oldIds.head.length)(ids)
    }
  }

  private def moved(batch: OffsetSeqBase, provider: String, partitions: Int): OffsetSeqBase = {
    val number = Option.when(partitions > 0)(SQLConf.SHUFFLE_PARTITIONS.key -> partitions.toString)
    val more = Map(SQLConf.STATE_STORE_PROVIDER_CLASS.key -> provider) ++ number
    batch match {
      case first: OffsetSeq =>
        first.copy(metadataOpt = first.metadataOpt.map(each => each.copy(conf = each.conf ++ more)))
      case second: OffsetMap => second.copy(metadata = second.metadata.copy(conf = second.metadata.conf ++ more))
      case other => throw new DynastateException(ErrorKind.Configuration,
          s"an offset log of this kind is not known kind=${other.getClass.getName}")
    }
  }

  private def mustBeNew(isNew: Boolean, newRoot: String): Unit = if (!isNew)
    throw new DynastateException(ErrorKind.Configuration,
      "another command writes this checkpoint at the same time; let it end, or delete the folder, and run it again " +
        s"checkpoint=$newRoot")

  /** Copy the descriptions of operators and rows. Operators' metadata name the files of schemas by full path, and the
   * number of partitions.
   */
  private def copyDescriptions(from: Path, to: Path, repartitioned: Set[Long], partitions: Int): Unit = {
    val (oldFiles, newFiles) = (from.getFileSystem(conf), to.getFileSystem(conf))
    def copy(folder: Path, target: Path, operator: Option[Long], inside: Seq[String]): Unit =
      oldFiles.listStatus(folder).foreach { status =>
        val (path, copied) = (status.getPath, new Path(target, status.getPath.getName))
        if (status.isDirectory) copy(path, copied, operator.orElse(path.getName.toLongOption), inside :+ path.getName)
        // Without its checksum, which is that of the old text; Spark then checks none.
        else if (!path.getName.endsWith(".crc") && inside.exists(Descriptions)) {
          val isOfOperator = inside.last == "v2" || (inside.last == "_metadata" && path.getName == "metadata")
          if (isOfOperator) {
            val text = SchemaPath.replaceAllIn(read(oldFiles, path),
              hit => Regex.quoteReplacement(within(to.toString, hit.matched)))
            val isChanged = partitions > 0 && operator.exists(repartitioned)
            write(newFiles, copied, if (isChanged) Partitions.replaceAllIn(text, s"$$1$partitions") else text)
          } else FileUtil.copy(oldFiles, path, newFiles, copied, false, conf)
        }
      }
    copy(from, to, None, Nil)
  }

  private def offsetLog(at: String, readOnly: Boolean): OffsetSeqLog =
    new OffsetSeqLog(session, new Path(at, "offsets").toString, readOnly)

  private def commitLog(at: String, readOnly: Boolean): CommitLog =
    new CommitLog(session, new Path(at, "commits").toString, readOnly)

  private def read(files: FileSystem, path: Path): String =
    Using.resource(files.open(path))(in => new String(in.readAllBytes(), UTF_8))

  private def write(files: FileSystem, path: Path, text: String): Unit =
    Using.resource(files.create(path, true))(_.write(text.getBytes(UTF_8)))
}

private[dynastate] object QueryCheckpoint {
  type Ids = Map[Long, Array[Array[String]]]
  /** The version of the file that describes a store without column families. */
  private val WithoutFamilies = 2
  private val Descriptions = Set("_metadata", "_stateSchema")
  /** `{state root}/{operator}/_stateSchema/{store}/{file}` in JSON. */
  private val SchemaPath = """[^"\\]*/\d+/_stateSchema/[^"/\\]+/[^"/\\]+""".r
  private val Partitions = """("numPartitions"\s*:\s*)\d+""".r

  def stateRoot(root: String): String = new Path(root, "state").toString

  /** Folders that are copied by other means, and copies that a rollback keeps. */
  private def isApart(name: String): Boolean = Set("offsets", "commits", "state")(name) ||
    name.startsWith("before-rollback-")

  /** The current path of a schema file: the stored one has the scheme and the folder that the checkpoint had then. */
  private def within(root: String, path: String): String = s"$root/${path.split('/').takeRight(4).mkString("/")}"
}
