package io.dynastate.spark

import java.nio.ByteBuffer
import java.util.concurrent.{CompletableFuture, ConcurrentHashMap, Executors, ExecutorService}
import java.util.concurrent.TimeUnit.NANOSECONDS

import scala.collection.mutable
import scala.util.control.NonFatal

import io.dynastate.core.{Attempt, BucketCache, BucketedVersions, BucketSink, BucketSource, Buckets, ChangedBuckets, Connection, Content}
import io.dynastate.core.{DynastateException, Entry, ErrorKind, Families, Found, LoadingVersions, Runs, Sidecar, Version, VersionTree, Wanted}
import org.apache.hadoop.conf.Configuration
import org.apache.hadoop.fs.Path
import org.slf4j.LoggerFactory

import org.apache.spark.sql.catalyst.expressions.UnsafeRow
import org.apache.spark.sql.dynastate.{ChangeIterator, SparkInternals}
import org.apache.spark.sql.execution.streaming.state._
import org.apache.spark.sql.types.StructType

/**
 * Keeps a Structured Streaming query's state in DynamoDB.
 *
 * Life cycle: made by reflection, `init` once (no I/O: Spark holds an executor-wide lock), then any number of stores, several
 * of them open at once, until `close`. It holds the last `maxBatchesToRetainInMemory` versions in memory, as heads and
 * undo records of version trees; a version that is not among them is brought by the engine, from the nearest one that is. Where
 * memory is bounded, versions are in buckets, which the engine brings one by one when a row of theirs is asked for.
 * Maintenance offers the newest of them to the engine as a snapshot, and has it remove what is not needed any more.
 *
 * Safe for threads: `retained` is guarded by this object, trees guard themselves, and no lock is held during I/O.
 */
class DynamoDBStateStoreProvider extends StateStoreProvider43 {
  import DynamoDBStateStoreProvider._

  private[this] var id: StateStoreId = _
  private[this] var default: ColumnFamily = _
  private[this] var useColumnFamilies = false
  private[this] var conf: StateStoreConf = _
  private[this] var hadoopConf: Configuration = _
  private[this] var settings: ProviderSettings = _
  private[this] var runId: String = _
  /** Column families as operators described them, by name. */
  private[this] val registered = new ConcurrentHashMap[String, ColumnFamily]
  private[this] val readStores = new ReadStores41
  /** The parsed schema of the newest version: nearly every version has the same. */
  @volatile private[this] var lastSchema: StateSchema = StateSchema.Empty
  /** Newest use first. */
  private[this] val retained = mutable.ListBuffer.empty[Version]
  @volatile private[this] var formatIsValidated = false
  @volatile private[this] var markerIsWritten = false
  /** Spark's state reader never commits, and has nothing to maintain. */
  @volatile private[this] var hasCommitted = false
  @volatile private[this] var isClosed = false
  /** The version that was last offered as a snapshot, and the one at which was last cleaned up; 0: none. */
  @volatile private[this] var snapshotAskedAt = 0L
  /** What maintenance cost, and what single buckets and loads behind tasks did, since it was last told. */
  private[this] var maintained, read = Map.empty[String, Long]
  @volatile private[this] var cleanUpAskedAt = 0L

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
    DynamoDBStateStoreProvider.refuseUnsupported(storeConfs)
    require(!useMultipleValuesPerKey || useColumnFamilies, "multiple values per key need column families")
    this.id = stateStoreId
    this.default = ColumnFamily(StateStore.DEFAULT_COL_FAMILY_NAME, keyStateEncoderSpec, valueSchema, useMultipleValuesPerKey, internal = false)
    this.useColumnFamilies = useColumnFamilies
    this.conf = storeConfs
    this.hadoopConf = hadoopConf
    this.settings = ProviderSettings(stateStoreId, storeConfs, hadoopConf)
    registered.put(default.name, default)
    this.runId = Option(hadoopConf.get("sql.streaming.runId")).getOrElse(throw new DynastateException(
      ErrorKind.Internal, s"Spark gave no run id to the state store store=${settings.store}"))
  }

  override def stateStoreId: StateStoreId = id

  override def getStore(
      version: Long, stateStoreCkptId: Option[String], forceSnapshotOnCommit: Boolean, loadEmpty: Boolean): StateStore = {
    // An empty store at version 0 is one like others. Above it, what is made of one is written whole, and stands on nothing.
    if (loadEmpty && version > 0) new DynamoDBStateStore(this, VersionTree.empty("", version), None, None, isWhole = true)
    else readStores.take(version, stateStoreCkptId) match {
      case Some(read) => upgradeReadStoreToWriteStore(read, version, stateStoreCkptId, forceSnapshotOnCommit)
      case None =>
        val (found, load) = find(version, stateStoreCkptId)
        new DynamoDBStateStore(this, found, stateStoreCkptId, load)
    }
  }

  override def getReadStore(version: Long, uniqueId: Option[String]): ReadStateStore = {
    val (found, load) = find(version, uniqueId)
    val store = new DynamoDBReadStateStore(this, found, load)
    readStores.opened(store, uniqueId)
    store
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

  /** Every version that is there can be opened, whatever it is replayed from: the result is the same. */
  override def replayStateFromSnapshot(
      snapshotVersion: Long, endVersion: Long, readOnly: Boolean,
      snapshotVersionStateStoreCkptId: Option[String], endVersionStateStoreCkptId: Option[String]): StateStore = {
    mustBeReplayable(snapshotVersion, endVersion)
    getStore(endVersion, endVersionStateStoreCkptId, forceSnapshotOnCommit = false, loadEmpty = false)
  }

  override def replayReadStateFromSnapshot(
      snapshotVersion: Long, endVersion: Long,
      snapshotVersionStateStoreCkptId: Option[String], endVersionStateStoreCkptId: Option[String]): ReadStateStore = {
    mustBeReplayable(snapshotVersion, endVersion)
    getReadStore(endVersion, endVersionStateStoreCkptId)
  }

  override def getStateStoreChangeDataReader(
      startVersion: Long, endVersion: Long, colFamilyNameOpt: Option[String],
      endVersionStateStoreCkptId: Option[String]): ChangeIterator = {
    mustBeReplayable(startVersion, endVersion)
    try new ChangeReader(this, colFamilyNameOpt.getOrElse(StateStore.DEFAULT_COL_FAMILY_NAME), startVersion, endVersion, attemptOf(endVersion, endVersionStateStoreCkptId))
    catch { case e: DynastateException => throw SparkInternals.cannotLoad(e) }
  }

  private def mustBeReplayable(from: Long, to: Long): Unit = {
    if (from < 1) throw SparkInternals.unexpectedVersion(from)
    if (to < from) throw SparkInternals.unexpectedVersion(to)
  }

  override def doMaintenance(): Unit = {
    doSnapshotMaintenance()
    doCleanupMaintenance()
  }

  /** Every `minDeltasForSnapshot` versions; whether it is time for a snapshot is the engine's to say. */
  override def doSnapshotMaintenance(): Unit = {
    val least = math.max(1, conf.minDeltasForSnapshot)
    // Numbers go back, too, where a query is started again from an older batch.
    newest().filter(version => math.abs(version.number - snapshotAskedAt) >= least).foreach { version =>
      maintain("a snapshot was not written", version) { connection =>
        val started = System.nanoTime()
        connection.snapshot(settings.store, runId, version, version.tree.stateBytes(version), least, deadlineSeconds)
          .fold(spent, wanted => spent(sendSnapshot(connection, version, wanted, started)))
        snapshotAskedAt = version.number
      }
    }
  }

  /** Every `minVersionsToDelete` versions; at the next maintenance already where more could have gone, or it failed. */
  override def doCleanupMaintenance(): Unit = {
    val least = math.min(math.max(1L, conf.minVersionsToDelete), Int.MaxValue.toLong).toInt
    newest().filter(version => cleanUpAskedAt == 0 || math.abs(version.number - cleanUpAskedAt) >= least).foreach { version =>
      maintain("nothing was cleaned up", version) { connection =>
        val started = System.nanoTime()
        val most = math.max(0, Spark41.maxVersionsToDeletePerMaintenance(conf))
        val counters = connection.cleanUp(settings.store, runId, version, conf.minVersionsToRetain, least, most, deadlineSeconds)
        spent(counters)
        val (deleted, left) = (counters.getOrElse("itemsDeleted", 0L), counters.getOrElse("versionsLeft", 0L))
        cleanUpAskedAt = if (left == 0) version.number else 0
        if (deleted > 0) {
          log.info(s"cleaned up store=${settings.store} version=$version itemsDeleted=$deleted versionsLeft=$left ms=${millisSince(started)}")
        }
      }
    }
  }

  override def close(): Unit = synchronized {
    isClosed = true
    retained.map(_.tree).distinct.foreach(_.close())
    retained.clear()
    if (settings != null) ProviderMetrics.forget(settings.store)
  }

  override def supportedCustomMetrics: Seq[StateStoreCustomMetric] = ProviderMetrics.all

  override def toString: String = s"DynamoDBStateStoreProvider[store=${if (settings == null) "?" else settings.store}]"

  // -------------------------------------------------------------------------------------------------- for its own stores

  private[spark] def config: StateStoreConf = conf

  private[spark] def storeName: String = settings.store

  private[spark] def deadlineSeconds: Long = settings.deadlineSeconds

  /** The column families of a version, the default one as this query describes it. */
  private[spark] def schemaOf(version: Version): StateSchema = {
    val known = lastSchema
    if (known.text == version.schema) known
    else {
      val parsed = (if (version.schema.isEmpty) StateSchema.Empty else StateSchema.parse(version.schema)).add(default)
      lastSchema = parsed
      parsed
    }
  }

  private[spark] def register(family: ColumnFamily): Unit = registered.put(family.name, family)

  /**
   * A family for a store. A writer must have made it, or found it in its version: `registered` also holds families of attempts
   * that were aborted, and of later versions. For a reader, one that its version does not have yet has no rows, under the id it would get.
   */
  private[spark] def openFamily(operation: String, name: String, schema: StateSchema, isForWriter: Boolean): OpenFamily = {
    val family = registered.get(name)
    if (family == null || (isForWriter && !schema.ids.contains(name))) {
      throw StateStoreErrors.unsupportedOperationOnMissingColumnFamily(operation, name)
    }
    new OpenFamily(schema.ids.getOrElse(name, schema.add(family).ids(name)), family, useColumnFamilies)
  }

  /** Spark's rules for names of column families. */
  private[spark] def mustTakeFamily(operation: String, name: String, isInternal: Boolean): Unit = {
    if (!useColumnFamilies) throw StateStoreErrors.unsupportedOperationException(operation, toString)
    if (name.isEmpty || name.trim != name || (name == StateStore.DEFAULT_COL_FAMILY_NAME && !isInternal)) {
      throw StateStoreErrors.cannotUseColumnFamilyWithInvalidName(operation, name)
    }
    if (!isInternal && name.charAt(0) == '$') throw StateStoreErrors.cannotCreateColumnFamilyWithReservedChars(name)
  }

  private[spark] def lease(): Connection = Sidecar.forPython(settings.python).lease(settings.engine)

  private[spark] def begin(connection: Connection, base: Version, attempt: Attempt): Unit =
    connection.begin(settings.store, runId, id.checkpointRootLocation, base, attempt)

  /** Keep a version, newest first, and let the oldest go. */
  private[spark] def retain(version: Version): Unit = synchronized {
    retained -= version
    retained.prepend(version)
    // At least the newest stays: without it every batch would load the whole state.
    while (retained.size > math.max(1, conf.maxVersionsToRetainInMemory)) {
      val gone = retained.remove(retained.size - 1).tree
      if (!retained.exists(_.tree eq gone)) gone.close()
    }
  }

  /** Keep a version that was committed here, and the one it stands on. */
  private[spark] def retainCommitted(base: Version, next: Version): Unit = {
    next.tree.committed(base, next)
    if (base.number > 0) retain(base)
    retain(next)
    hasCommitted = true
  }

  private[spark] def reportCommit(newVersion: Long): Unit = Spark41.reportCommit(newVersion, id, conf, hadoopConf)

  /** Spark's cheap check for wrong schemas: on the first row pair that is read. Like RocksDB's, without column families only. */
  private[spark] def validateFormat(key: UnsafeRow, value: UnsafeRow): Unit = if (!formatIsValidated) {
    if (!useColumnFamilies) Spark41.validateStateRowFormat(key, default.keySchema, value, default.valueSchema, id, conf)
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

  // --------------------------------------------------------------------------------------------------------- maintenance

  /** The newest version in memory, if there is anything to maintain; of several with its number the one used last. */
  private def newest(): Option[Version] = synchronized(if (isClosed || !hasCommitted) None else retained.maxByOption(_.number))

  /** Nobody waits for maintenance, and whatever it could not do it does later. */
  private def maintain(failed: String, version: Version)(converse: Connection => Unit): Unit =
    try conversing(converse)
    catch {
      case NonFatal(e) => log.warn(s"$failed, and will be tried again; no state is lost store=${settings.store} version=$version: ${e.getMessage}")
    }

  /** Send the buckets that changed since the snapshot before; all, if there is none, or what changed since is not known. */
  private def sendSnapshot(connection: Connection, version: Version, wanted: Wanted, started: Long): Map[String, Long] = {
    val changed = if (wanted.base == 0) null else version.tree.changed.since(wanted.base)
    val isSent = Array.tabulate(1 << wanted.bits)(bucket => changed == null || ChangedBuckets.touches(changed, bucket, wanted.bits))
    val counters = sendBuckets(connection, version, wanted.bits, isSent)
    version.tree.changed.forget(version.number)
    log.info(s"snapshot store=${settings.store} version=$version base=${wanted.base} buckets=${isSent.count(identity)}/${isSent.length} " +
      s"bytesWritten=${counters.getOrElse("bytesWritten", 0L)} writeUnits=${counters.getOrElse("writeUnits", 0L)} ms=${millisSince(started)}")
    counters
  }

  /** Write a version that stands on nothing, and commit it; what it cost. */
  private[spark] def commitWhole(version: Version): Map[String, Long] = conversing { connection =>
    val wanted = connection.whole(settings.store, runId, id.checkpointRootLocation, version, version.tree.stateBytes(version), deadlineSeconds)
    sendBuckets(connection, version, wanted.bits, Array.fill(1 << wanted.bits)(true))
  }

  private def sendBuckets(connection: Connection, version: Version, bits: Int, isSent: Array[Boolean]): Map[String, Long] = {
    Buckets.send(version, bits, isSent, new BucketSink {
      override def bucket(number: Int): Unit = connection.bucket(number, deadlineSeconds)

      override def append(records: Int, hashMin: Int, hashMax: Int, run: Array[Byte], length: Int): Unit =
        connection.append(records, hashMin, hashMax, run, length, deadlineSeconds)
    })
    connection.endSnapshot(deadlineSeconds)
  }

  /** Maintenance belongs to no batch: what it cost is shown with the next commit. */
  private def spent(counters: Map[String, Long]): Unit = synchronized { maintained = sum(maintained, counters) }

  private def sum(one: Map[String, Long], other: Map[String, Long]): Map[String, Long] =
    other.foldLeft(one) { case (all, (name, value)) => all + (name -> (all.getOrElse(name, 0L) + value)) }

  /** What single buckets and loads behind tasks have cost since this was last asked for. */
  private[spark] def takeRead(): Map[String, Long] = synchronized {
    val taken = read
    read = Map.empty
    taken
  }

  /** What maintenance has cost since this was last asked for, by the names of the protocol. */
  private[spark] def takeMaintained(): Map[String, Long] = synchronized {
    val taken = maintained
    maintained = Map.empty
    taken
  }

  private def millisSince(started: Long): Long = NANOSECONDS.toMillis(System.nanoTime() - started)

  // ------------------------------------------------------------------------------------------------------------- finding

  private def find(version: Long, checkpointId: Option[String]): (Version, Option[Load]) = {
    if (version < 0) throw SparkInternals.unexpectedVersion(version)
    if (version == 0) {
      mustReachEngine()
      return (if (isBounded) bucketed(0L).empty("") else VersionTree.empty(""), None)
    }
    val attempt = attemptOf(version, checkpointId)
    val held = synchronized(retained.toList)
    // An id names one attempt for ever. A bare number is the engine's to resolve: another executor may have made it anew.
    held.find(each => each.number == version && each.attempt == attempt) match {
      case Some(found) => (found, None)
      case None =>
        try {
          if (isBounded) locate(version, attempt, held)
          else if (held.isEmpty) loadFromNothing(version, attempt)
          else load(version, attempt, held.filter(_.number <= version))
        }
        catch { case e: DynastateException => throw SparkInternals.cannotLoad(e) }
    }
  }

  /** Find a wrong setting, a missing table or a missing package before the first batch is computed, not when it commits. */
  private def mustReachEngine(): Unit =
    try conversing(_.check(deadlineSeconds))
    catch { case e: DynastateException => throw SparkInternals.cannotLoad(e) }

  /** The attempt that a checkpoint id names; `Attempt.None`: whichever made the version. */
  private def attemptOf(version: Long, checkpointId: Option[String]): Attempt = checkpointId match {
    case None => Attempt.None
    case Some(text) => Attempt.parse(text).getOrElse(throw SparkInternals.cannotLoad(new DynastateException(
      ErrorKind.Missing, s"this checkpoint id is none of dynastate's store=${settings.store} version=$version id=$text")))
  }

  /** Ask the engine for a version; it brings only what comes after the newest of `held` on the way to it. */
  private def load(version: Long, attempt: Attempt, held: List[Version]): (Version, Option[Load]) = {
    val started = System.nanoTime()
    var runs: Runs = null
    var answer: Found = null
    var from = 0L
    val counters = conversing(_.open(settings.store, version, attempt, held.map(each => (each.number, each.attempt)), deadlineSeconds)(
      found => {
        answer = found
        runs = new Runs
        from = 0L
        if (found.base > 0) runs.startFrom(nodeOf(held, found))
      },
      snapshot => {
        from = snapshot
        runs.markFromHere()
      },
      (records, run) => runs.add(records, run)))
    val found = place(answer, from, held, runs)
    retain(found)
    val millis = millisSince(started)
    val missed = !held.contains(found)
    if (missed) {
      log.info(s"loaded store=${settings.store} version=$version attempt=${found.attempt} from=${math.max(answer.base, from)} " +
        s"rows=${found.keys.sum} bytesRead=${counters.getOrElse("bytesRead", 0L)} ms=$millis")
    }
    (found, Some(Load(missed, millis, counters)))
  }

  /**
   * Find a version, of which nothing is held, and load it. A large one is loaded behind the task's back, which starts on the rows it needs
   * first; they are read with their buckets. What that costs is shown with the next commit.
   */
  private def loadFromNothing(version: Long, attempt: Attempt): (Version, Option[Load]) = {
    val started = System.nanoTime()
    var answer: Found = null
    var content: Content = null
    val found = conversing(_.find(settings.store, version, attempt, deadlineSeconds) { (version: Found, holds: Content) =>
      answer = version
      content = holds
    })
    if (content.keys.sum < LoadBehindRowsMin) {
      val (whole, load) = this.load(version, answer.attempt, Nil)
      (whole, load.map(each => Load(missed = true, millisSince(started), sum(each.counters, found))))
    } else {
      lazy val loading: Version = new LoadingVersions(readBucket, whole => loaders.execute(() => loadBehind(loading, whole)))
        .begin(answer.version, answer.attempt, answer.schema, content.keys, content.bits)
      retain(loading)
      (loading, Some(Load(missed = true, millisSince(started), found)))
    }
  }

  private def loadBehind(loading: Version, whole: CompletableFuture[Version]): Unit =
    try {
      val (found, load) = this.load(loading.number, loading.attempt, Nil)
      load.foreach(each => synchronized { read = sum(read, each.counters + ("loadMs" -> each.millis)) })
      whole.complete(found)
    } catch {
      // Whatever it is, tasks wait to be told.
      case e: Throwable =>
        log.warn(s"a load failed, and is tried again by the next task that needs it store=${settings.store} version=$loading: ${e.getMessage}")
        whole.completeExceptionally(e match {
          case failed: DynastateException => SparkInternals.cannotLoad(failed)
          case other => other
        })
        if (!NonFatal(e)) throw e
    } finally synchronized {
      // The version that was loaded is the one to go on from.
      retained -= loading
    }

  private def isBounded: Boolean = settings.memoryBytes > 0

  private def bucketed(startsAt: Long): BucketedVersions = new BucketedVersions(BucketCache.of(settings.memoryBytes), readBucket, startsAt)

  /** Ask the engine which version it is; its rows come when they are asked for. */
  private def locate(version: Long, attempt: Attempt, held: List[Version]): (Version, Option[Load]) = {
    val started = System.nanoTime()
    var found: Version = null
    var isHeld = false
    val counters = conversing { connection =>
      connection.find(settings.store, version, attempt, deadlineSeconds) { (answer: Found, content: Content) =>
        val ours = held.find(each => each.number == answer.version && each.attempt == answer.attempt)
        isHeld = ours.isDefined
        found = ours.getOrElse(bucketed(answer.version).absent(answer.version, answer.attempt, answer.schema, content.keys, content.bits))
      }
    }
    retain(found)
    (found, Some(Load(!isHeld, millisSince(started), counters)))
  }

  private[this] val readBucket: BucketSource = (version: Version, bits: Int, bucket: Int) => {
    def nothing = new Runs(hash => ChangedBuckets.bucketOf(hash, bits) == bucket)
    var runs = nothing
    val counters = conversing(_.read(settings.store, version, bits, bucket, deadlineSeconds)(
      () => runs = nothing, (records, run) => runs.add(records, run)))
    synchronized { read = sum(read, counters + ("bucketsRead" -> 1L)) }
    runs.asWhole()
  }

  /** Half a conversation cannot be gone on with by whoever leases the connection next. */
  private def conversing[A](converse: Connection => A): A = {
    val connection = lease()
    var isOver = false
    try {
      val answer = converse(connection)
      isOver = true
      answer
    } finally if (isOver) connection.giveBack() else connection.close()
  }

  /** @param snapshot the version of the snapshot that the rows begin with; 0: there is none, and then all may have changed since any */
  private def place(found: Found, snapshot: Long, held: List[Version], runs: Runs): Version =
    if (found.base == 0) {
      val changed = new ChangedBuckets(if (snapshot == 0) found.version else snapshot)
      changed.add(found.version, runs.marked)
      VersionTree.load(runs.asWhole(), found.version, found.attempt, found.schema, changed)
    } else {
      val base = nodeOf(held, found)
      if (found.version == base.number) base
      else base.tree.fold(base, runs.asChanges, found.version, found.attempt, found.schema)
    }

  private def nodeOf(held: List[Version], found: Found): Version =
    held.find(each => each.number == found.base && each.attempt == found.baseAttempt).getOrElse(throw new DynastateException(
      ErrorKind.Internal, s"the engine built on a version the provider does not hold store=${settings.store} base=${found.base}"))
}

/** What was changed in a column family, version by version; the number beside each change is its batch, version - 1. */
private[spark] final class ChangeReader(provider: DynamoDBStateStoreProvider, familyName: String, first: Long, last: Long, attempt: Attempt)
  extends ChangeIterator {
  private[this] val connection = provider.lease()
  private[this] var version = first
  private[this] var changes = new Runs.Changes(ByteBuffer.allocate(0))
  private[this] val family =
    try {
      val found = connection.changes(provider.storeName, first, last, attempt, provider.deadlineSeconds)
      provider.openFamily("changes", familyName, StateSchema.parse(found.schema), isForWriter = false)
    } catch { case NonFatal(e) => connection.close(); throw e }
  private[this] val key = new UnsafeRow(family.keyColumns)
  private[this] val value = new UnsafeRow(family.valueColumns)

  override def getNext(): (RecordType.Value, UnsafeRow, UnsafeRow, Long) = {
    while (!finished) {
      while (changes.advance()) if (changes.family == family.id) return shown()
      connection.nextChanges(provider.deadlineSeconds)(version = _) match {
        case Some(run) => changes = new Runs.Changes(run)
        case None => finished = true
      }
    }
    null
  }

  /** A reader that stops early leaves half a conversation, which no one else can go on with. */
  override def close(): Unit = if (finished) connection.giveBack() else connection.close()

  private def shown(): (RecordType.Value, UnsafeRow, UnsafeRow, Long) = {
    val entry = changes.entry
    val shownKey = family.keyOf(entry, key)
    if (Entry.isDelete(entry)) (RecordType.DELETE_RECORD, shownKey, null, version - 1)
    else {
      value.pointTo(entry, Entry.valueOffset(entry), Entry.valueLength(entry))
      (if (changes.isMerge) RecordType.MERGE_RECORD else RecordType.PUT_RECORD, shownKey, value, version - 1)
    }
  }
}

object DynamoDBStateStoreProvider {
  private val log = LoggerFactory.getLogger("io.dynastate.Provider")
  /** Smaller versions are there before it pays to ask for single buckets. */
  private val LoadBehindRowsMin = 100000L
  /** A thread for each load behind a task's back, of which no executor has more than stores. */
  private val loaders: ExecutorService = Executors.newCachedThreadPool { task =>
    val thread = new Thread(task, "dynastate-loader")
    thread.setDaemon(true)
    thread
  }

  private def refuseUnsupported(conf: StateStoreConf): Unit = if (conf.stateStoreEncodingFormat != "unsaferow") {
    throw new DynastateException(ErrorKind.Configuration,
      s"spark.sql.streaming.stateStore.encodingFormat=${conf.stateStoreEncodingFormat} is not supported by dynastate " +
        s"${Sidecar.packageVersion}; leave it at unsaferow, or use Spark's RocksDB state store for this query")
  }
}
