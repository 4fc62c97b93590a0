package io.dynastate.spark

import java.util.concurrent.TimeUnit.NANOSECONDS

import scala.collection.mutable

import io.dynastate.core.{Attempt, Connection, DynastateException, Entry, EntryIterator, ErrorKind, Families, Opened, Sidecar, Version, VersionTree}
import org.apache.hadoop.conf.Configuration
import org.apache.hadoop.fs.Path
import org.json4s.JsonAST.{JArray, JBool, JInt, JObject, JString}
import org.json4s.jackson.JsonMethods.{compact, render}
import org.slf4j.LoggerFactory

import org.apache.spark.sql.catalyst.expressions.UnsafeRow
import org.apache.spark.sql.dynastate.SparkInternals
import org.apache.spark.sql.execution.streaming.state._
import org.apache.spark.sql.types.StructType

/**
 * Keeps a Structured Streaming query's state in DynamoDB.
 *
 * Life cycle: made by reflection, `init` once (no I/O: Spark holds an executor-wide lock), then any number of stores, several
 * of them open at once, until `close`. It holds the last `maxBatchesToRetainInMemory` versions in memory, as heads and
 * undo records of version trees; a version that is not among them is brought by the engine, from the nearest one that is.
 *
 * Safe for threads: `retained` is guarded by this object, trees guard themselves, and no lock is held during I/O.
 */
class DynamoDBStateStoreProvider extends StateStoreProvider {
  import DynamoDBStateStoreProvider.log

  private[this] var id: StateStoreId = _
  private[this] var keySchema: StructType = _
  private[this] var valueSchema: StructType = _
  private[this] var conf: StateStoreConf = _
  private[this] var hadoopConf: Configuration = _
  private[this] var settings: ProviderSettings = _
  private[this] var schemaText: String = _
  private[this] var runId: String = _
  /** Newest use first. */
  private[this] val retained = mutable.ListBuffer.empty[Version]
  @volatile private[this] var formatIsValidated = false
  @volatile private[this] var markerIsWritten = false

  override def init(
      stateStoreId: StateStoreId,
      keySchema: StructType,
      valueSchema: StructType,
      keyStateEncoderSpec: KeyStateEncoderSpec,
      useColumnFamilies: Boolean,
      storeConfs: StateStoreConf,
      hadoopConf: Configuration,
      useMultipleValuesPerKey: Boolean,
      stateSchemaProvider: Option[StateSchemaProvider]): Unit = {
    DynamoDBStateStoreProvider.refuseUnsupported(keyStateEncoderSpec, useColumnFamilies, useMultipleValuesPerKey, storeConfs)
    this.id = stateStoreId
    this.keySchema = keySchema
    this.valueSchema = valueSchema
    this.conf = storeConfs
    this.hadoopConf = hadoopConf
    this.settings = ProviderSettings(stateStoreId, storeConfs, hadoopConf)
    this.schemaText = DynamoDBStateStoreProvider.schemaText(keySchema, valueSchema, keyStateEncoderSpec)
    this.runId = Option(hadoopConf.get("sql.streaming.runId")).getOrElse(throw new DynastateException(
      ErrorKind.Internal, s"Spark gave no run id to the state store store=${settings.store}"))
  }

  override def stateStoreId: StateStoreId = id

  override def getStore(
      version: Long, stateStoreCkptId: Option[String], forceSnapshotOnCommit: Boolean, loadEmpty: Boolean): StateStore = {
    if (loadEmpty) {
      throw StateStoreErrors.unsupportedOperationException("getStore(loadEmpty), offline repartition", "DynamoDB state store")
    }
    val (found, load) = find(version, stateStoreCkptId)
    new DynamoDBStateStore(this, found, stateStoreCkptId, load)
  }

  override def getReadStore(version: Long, uniqueId: Option[String]): ReadStateStore = {
    val (found, load) = find(version, uniqueId)
    new DynamoDBReadStateStore(this, found, load)
  }

  /** The read store may be of an earlier instance of this provider: it holds its version itself. */
  override def upgradeReadStoreToWriteStore(
      readStore: ReadStateStore, version: Long, uniqueId: Option[String], forceSnapshotOnCommit: Boolean): StateStore =
    readStore match {
      case read: DynamoDBReadStateStore =>
        require(read.version == version && read.id == id, s"a read store of ${read.id} at version ${read.version} cannot be written as $id at $version")
        new DynamoDBStateStore(this, read.base, uniqueId, read.load)
      case other => throw new IllegalArgumentException(s"not a read store of dynastate: ${other.getClass.getName}")
    }

  override def doMaintenance(): Unit = {
    doSnapshotMaintenance()
    doCleanupMaintenance()
  }

  override def close(): Unit = synchronized(retained.clear())

  override def supportedCustomMetrics: Seq[StateStoreCustomMetric] = ProviderMetrics.all

  override def toString: String = s"DynamoDBStateStoreProvider[store=${if (settings == null) "?" else settings.store}]"

  // -------------------------------------------------------------------------------------------------- for its own stores

  private[spark] def config: StateStoreConf = conf

  private[spark] def storeName: String = settings.store

  private[spark] def deadlineSeconds: Long = settings.deadlineSeconds

  private[spark] def keyColumns: Int = keySchema.length

  private[spark] def valueColumns: Int = valueSchema.length

  private[spark] def lease(): Connection = Sidecar.forPython(settings.python).lease(settings.engine)

  private[spark] def begin(connection: Connection, base: Version, attempt: Attempt): Unit =
    connection.begin(settings.store, runId, id.checkpointRootLocation, base, attempt, schemaText)

  /** Keep a version, newest first, and let the oldest go. */
  private[spark] def retain(version: Version): Unit = synchronized {
    retained -= version
    retained.prepend(version)
    // At least the newest stays: without it every batch would load the whole state.
    while (retained.size > math.max(1, conf.maxVersionsToRetainInMemory)) retained.remove(retained.size - 1)
  }

  private[spark] def reportCommit(newVersion: Long): Unit =
    if (conf.commitValidationEnabled) StateStore.reportCommitToCoordinator(newVersion, id, hadoopConf)

  /** Spark's cheap check for wrong schemas: on the first row pair that is read. */
  private[spark] def validateFormat(key: UnsafeRow, value: UnsafeRow): Unit = if (!formatIsValidated) {
    StateStoreProvider.validateStateRowFormat(key, keySchema, value, valueSchema, id, conf)
    formatIsValidated = true
  }

  /**
   * Leave a file in the partition's folder, once. Spark's state reader finds partitions by listing folders, and would
   * otherwise read partition 0 only and say nothing.
   */
  private[spark] def writeMarker(): Unit = if (!markerIsWritten) {
    val marker = new Path(new Path(new Path(id.checkpointRootLocation, id.operatorId.toString), id.partitionId.toString), "dynastate")
    val fileSystem = marker.getFileSystem(hadoopConf)
    if (!fileSystem.exists(marker)) {
      val out = fileSystem.create(marker, true)
      try out.writeBytes(s"state of this partition is in DynamoDB store=${settings.store}\n") finally out.close()
    }
    markerIsWritten = true
  }

  // ------------------------------------------------------------------------------------------------------------- finding

  private def find(version: Long, checkpointId: Option[String]): (Version, Option[Load]) = {
    if (version < 0) throw SparkInternals.unexpectedVersion(version)
    if (version == 0) return (VersionTree.empty(), None)
    val attempt = checkpointId.map(text => Attempt.parse(text).getOrElse(throw StateStoreErrors.cannotLoadStore(new DynastateException(
      ErrorKind.Missing, s"this checkpoint id is none of dynastate's store=${settings.store} version=$version id=$text"))))
    val held = synchronized(retained.toList)
    // An id names one attempt for ever. A bare number is the engine's to resolve: another executor may have made it anew.
    attempt.flatMap(named => held.find(each => each.number == version && each.attempt == named)) match {
      case Some(found) => (found, None)
      case None =>
        try load(version, attempt.getOrElse(Attempt.None), held.filter(_.number <= version))
        catch { case e: DynastateException => throw StateStoreErrors.cannotLoadStore(e) }
    }
  }

  /** Ask the engine for a version; it brings only what comes after the newest of `held` on the way to it. */
  private def load(version: Long, attempt: Attempt, held: List[Version]): (Version, Option[Load]) = {
    val started = System.nanoTime()
    val connection = lease()
    try {
      val rows = new Families
      val opened = connection.open(settings.store, version, attempt, held.map(each => (each.number, each.attempt)), deadlineSeconds) {
        (records, run) => DynamoDBStateStoreProvider.addRun(rows, records, run)
      }
      val found = place(opened, held, rows)
      retain(found)
      val millis = NANOSECONDS.toMillis(System.nanoTime() - started)
      val missed = !held.contains(found)
      if (missed) {
        log.info(s"loaded store=${settings.store} version=$version attempt=${opened.attempt} from=${opened.base} " +
          s"rows=${found.keys.sum} bytesRead=${opened.counters.getOrElse("bytesRead", 0L)} ms=$millis")
      }
      (found, Some(Load(missed, millis, opened.counters)))
    } finally connection.giveBack()
  }

  private def place(opened: Opened, held: List[Version], rows: Families): Version =
    if (opened.base == 0) {
      VersionTree.load(DynamoDBStateStoreProvider.withoutDeletes(rows), opened.version, opened.attempt)
    } else {
      val base = held.find(each => each.number == opened.base && each.attempt == opened.baseAttempt).getOrElse(throw new DynastateException(
        ErrorKind.Internal, s"the engine built on a version the provider does not hold store=${settings.store} base=${opened.base}"))
      if (opened.version == base.number) base else base.tree.fold(base, rows, opened.version, opened.attempt)
    }
}

object DynamoDBStateStoreProvider {
  private val log = LoggerFactory.getLogger("io.dynastate.Provider")
  private val PutOrRemove = 0

  private def refuseUnsupported(spec: KeyStateEncoderSpec, columnFamilies: Boolean, multipleValues: Boolean, conf: StateStoreConf): Unit = {
    def refuse(what: String): Nothing = throw new DynastateException(ErrorKind.Configuration,
      s"$what is not supported by dynastate ${Sidecar.packageVersion}; use Spark's RocksDB state store for this query")
    if (columnFamilies || multipleValues) refuse("transformWithState (state with column families)")
    spec match {
      case _: NoPrefixKeyStateEncoderSpec =>
      case _: PrefixKeyScanStateEncoderSpec => refuse("session_window aggregation (state with prefix scans)")
      case other => refuse(s"an operator with state keys of kind ${other.getClass.getSimpleName}")
    }
    if (conf.stateStoreEncodingFormat != "unsaferow") {
      refuse(s"spark.sql.streaming.stateStore.encodingFormat=${conf.stateStoreEncodingFormat}")
    }
  }

  /** JSON without blanks, keys in order (docs/storage-format.md, "schema"). */
  private def schemaText(key: StructType, value: StructType, spec: KeyStateEncoderSpec): String = {
    import org.json4s.jackson.JsonMethods.parse
    compact(render(JObject("families" -> JArray(List(JObject(
      "id" -> JInt(0),
      "internal" -> JBool(false),
      "key" -> parse(key.json),
      "key_encoder" -> parse(spec.json),
      "multiple" -> JBool(false),
      "name" -> JString(StateStore.DEFAULT_COL_FAMILY_NAME),
      "value" -> parse(value.json)))))))
  }

  /** Add a run of changes as it came from the engine; delete markers stay, for the version they are folded into. */
  private def addRun(rows: Families, records: Int, run: java.nio.ByteBuffer): Unit = {
    var added = 0
    while (run.hasRemaining) {
      val tag = run.getShort & 0xFFFF
      val keyLength = run.getInt(run.position())
      val valueLength = run.getInt(run.position() + 4)
      if (tag >>> 12 != PutOrRemove || keyLength < 0 || valueLength < Entry.DeleteMarker) {
        throw new DynastateException(ErrorKind.Corrupt, s"a change of an unknown kind tag=$tag keyLength=$keyLength valueLength=$valueLength")
      }
      val entry = new Array[Byte](Math.addExact(Entry.HeaderBytes + keyLength, math.max(valueLength, 0)))
      run.get(entry)
      rows(tag & 0xFFF).put(Entry.hash(entry), entry)
      added += 1
    }
    if (added != records) throw new DynastateException(ErrorKind.Corrupt, s"a run holds another number of records than it should: $added, not $records")
  }

  /** What remains when changes are applied to nothing. */
  private def withoutDeletes(rows: Families): Families = {
    var family = 0
    while (family < rows.bound) {
      val table = rows.existing(family)
      if (table != null) {
        val entries = new EntryIterator(Array(table.share()), showDeletes = true)
        while (entries.advance()) {
          val entry = entries.entry
          if (Entry.isDelete(entry)) table.remove(entries.hash, entry, Entry.KeyOffset, Entry.keyLength(entry))
        }
      }
      family += 1
    }
    rows
  }
}
