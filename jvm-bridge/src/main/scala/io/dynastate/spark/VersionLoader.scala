package io.dynastate.spark

import java.util.concurrent.{CompletableFuture, Executors, ExecutorService}
import java.util.concurrent.TimeUnit.NANOSECONDS

import scala.util.control.NonFatal

import io.dynastate.{DaemonThreads, DynastateException, ErrorKind}
import io.dynastate.bridge.{Content, Found}
import io.dynastate.memory.{
  Attempt, BucketCache, BucketedVersions, ChangeCollector, ChangedBuckets, LoadingVersions, RowStorage, RowsUnreadable,
  Version, VersionTree
}
import org.slf4j.LoggerFactory

import org.apache.spark.sql.dynastate.internals.SparkInternals

/** Opens versions: from memory, or through the engine, which sends only what comes after the nearest version in memory.
 *
 * Rows that do not fit on the heap are on local disk (docs/decisions/0017). Without it, or when it is full, a version's
 * rows are read bucket by bucket, when they are needed (docs/decisions/0007). A large version of which nothing is in
 * memory is read in both ways at once (docs/decisions/0008).
 *
 * @param counters of buckets, and of loads in the background
 */
private[spark] final class VersionLoader(client: EngineClient, retained: RetainedVersions, counters: PendingCounters) {
  import VersionLoader._
  import client.{deadlineSeconds, store}

  /** Where rows are that do not fit on the heap; null: all are on the heap, or in buckets. */
  private[this] val storage = client.settings.memory.disk.map { disk =>
    RowStorage.of(client.settings.memory.heapBytes, disk.folders, SparkInternals.localFolders, disk.limitBytes,
      disk.isEncrypted)
  }.orNull

  /** A version and, if the engine was asked for it, the cost. */
  def open(version: Long, checkpointId: Option[String]): (Version, Option[Load]) = {
    if (version < 0) throw SparkInternals.unexpectedVersion(version)
    if (version == 0) {
      client.check()
      return (if (readsBuckets) bucketed(0L).empty("") else empty(0L), None)
    }
    val attempt = attemptOf(version, checkpointId)
    val versions = usable()
    // An id names one attempt for ever. Only the engine can resolve a bare number: another executor may have made the
    // version again.
    RetainedVersions.byId(versions, version, attempt) match {
      case Some(found) => (found, None)
      case None =>
        try {
          if (readsBuckets) openInBuckets(version, attempt, versions)
          else if (versions.isEmpty) openCold(version, attempt)
          else loadOrRead(version, attempt, versions.filter(_.number <= version))
        } catch {
          case e @ (_: DynastateException | SparkInternals.WrongRowChecksum()) => throw SparkInternals.cannotLoad(e)
        }
    }
  }

  /** A version without rows. */
  def empty(number: Long): Version = VersionTree.empty("", number, storage, fallback)

  /** Whether rows are read bucket by bucket, since not all of them may be in memory, and there is no room on disk. */
  private def readsBuckets: Boolean = if (storage == null) client.settings.memoryBytes > 0 else !storage.hasRoom

  /** The versions in memory, without those that an error left half changed, or whose rows are in the wrong place. */
  private def usable(): List[Version] = {
    val bucketed = retained.all.filter(_.versions.isInstanceOf[BucketedVersions])
    if (storage != null && bucketed.exists(version => storage.hasRoomFor(version.versions.stateBytes(version)))) {
      log.info(s"rows are loaded, since local disk has room for them again store=$store")
      bucketed.foreach(retained.discard(_))
    }
    val (usable, others) = retained.all.partition(_.versions.isUsable)
    others.foreach { version =>
      retained.discard(version)
      if (version.versions.isHalfChanged) log.warn(
        s"rows in memory were left half changed by an error, and are loaded again store=$store version=$version")
      else log.info(
        "rows do not fit into memory and on local disk, or cannot be read from it, and are read from DynamoDB " +
          s"store=$store version=$version")
    }
    usable
  }

  /** The attempt that a checkpoint id names; without an id `Attempt.None`, for any. */
  def attemptOf(version: Long, checkpointId: Option[String]): Attempt = checkpointId match {
    case None => Attempt.None
    case Some(text) => Attempt.parse(text).getOrElse(throw SparkInternals.cannotLoad(new DynastateException(
            ErrorKind.Missing, s"this checkpoint id is none of dynastate's store=$store version=$version id=$text")))
  }

  /** Load a version, or open it without rows if the disk fails, or is full, meanwhile. */
  private def loadOrRead(version: Long, attempt: Attempt, versions: List[Version], keys: Array[Long] = Array.empty): (
      Version, Option[Load]) =
    try load(version, attempt, versions, keys)
    catch { case _: RowsUnreadable => openInBuckets(version, attempt, versions) }

  /** Load all rows of a version, from the newest of `versions` among its ancestors; `keys` by family, if known. */
  private def load(version: Long, attempt: Attempt, versions: List[Version], keys: Array[Long]): (Version,
      Option[Load]) = {
    val startNanos = System.nanoTime()
    var collector: ChangeCollector = null
    var answer: Found = null
    var from = 0L
    val cost = client.converse(_.open(store, client.settings.run, version, attempt,
        versions.map(each => (each.number, each.attempt)), deadlineSeconds)(
        header => {
          answer = header
          collector = if (header.base > 0) new ChangeCollector
          else new ChangeCollector(storage = storage, expected = keys, isLoad = true)
          from = 0L
          if (header.base > 0) collector.startFrom(baseOf(versions, header))
        },
        snapshot => {
          from = snapshot
          collector.markFromHere()
        },
        (records, changes) => {
          collector.add(records, client.verified(changes))
          if (storage != null && answer.base == 0 && !storage.isUsable)
            throw new RowsUnreadable(s"rows do not fit into memory and on local disk store=$store version=$version")
        }))
    val next = versionOf(answer, from, versions, collector)
    retained.retain(next)
    val millis = millisSince(startNanos)
    val isMiss = !versions.contains(next)
    if (isMiss) {
      log.info(s"loaded store=$store version=$version attempt=${next.attempt} from=${math.max(answer.base, from)} " +
        s"rows=${next.keys.sum} bytesRead=${cost.getOrElse("bytesRead", 0L)} ms=$millis")
    }
    (next, Some(Load(isMiss, millis, cost)))
  }

  /** @param snapshot the version of the snapshot that the rows begin with; 0: there is none, and every row counts as
   * changed
   */
  private def versionOf(header: Found, snapshot: Long, versions: List[Version], collector: ChangeCollector): Version =
    if (header.base == 0) {
      val buckets = new ChangedBuckets(if (snapshot == 0) header.version else snapshot)
      buckets.add(header.version, collector.marked)
      VersionTree.load(collector.asRows, header.version, header.attempt, header.schema, buckets, fallback)
    } else {
      val base = baseOf(versions, header)
      if (header.version == base.number) base
      else base.versions.fold(base, collector.asChanges, header.version, header.attempt, header.schema)
    }

  private def baseOf(versions: List[Version], header: Found): Version =
    RetainedVersions.byId(versions, header.base, header.baseAttempt).getOrElse(
      throw new DynastateException(ErrorKind.Internal,
        s"the engine built on a version the provider does not hold store=$store base=${header.base}"))

  /** Open a version when none is in memory. A large one is loaded in the background, while the task reads the rows it
   * needs first with their buckets; the next commit reports what that costs.
   */
  private def openCold(version: Long, attempt: Attempt): (Version, Option[Load]) = {
    val startNanos = System.nanoTime()
    val (answer, content, cost) = find(version, attempt)
    if (content.keys.sum < backgroundRowsMin) {
      val (next, load) = loadOrRead(version, answer.attempt, Nil, content.keys)
      (next, load.map(each => Load(missed = true, millisSince(startNanos), PendingCounters.sum(each.counters, cost))))
    } else {
      lazy val interim: Version = new LoadingVersions(new BucketReads(client, counters, loaders, None),
        whole => loaders.execute(() => loadInBackground(interim, whole)))
        .begin(answer.version, answer.attempt, answer.schema, content.keys, content.bits)
      retained.retain(interim)
      (interim, Some(Load(missed = true, millisSince(startNanos), cost)))
    }
  }

  private def loadInBackground(interim: Version, whole: CompletableFuture[Version]): Unit =
    try {
      val (next, load) = loadOrRead(interim.number, interim.attempt, Nil, interim.keys)
      load.foreach(each => counters.add(each.counters + ("loadMs" -> each.millis)))
      whole.complete(next)
    } catch {
      // Tasks wait for `whole`, whatever the error.
      case e: Throwable =>
        log.warn(s"a load failed, and is tried again by the next task that needs it store=$store version=$interim: " +
          s"${e.getMessage}")
        whole.completeExceptionally(e match {
          case error: DynastateException => SparkInternals.cannotLoad(error)
          case other => other
        })
        if (!NonFatal(e)) throw e
    } finally retained.discard(interim) // the next task opens the loaded version

  /** Open a version whose rows are read when they are needed. */
  private def openInBuckets(version: Long, attempt: Attempt, versions: List[Version]): (Version, Option[Load]) = {
    val startNanos = System.nanoTime()
    val (answer, content, cost) = find(version, attempt)
    val inMemory = RetainedVersions.byId(versions, answer.version, answer.attempt)
    val next = inMemory.getOrElse(bucketed(answer.version).absent(answer.version, answer.attempt, answer.schema,
        content.keys, content.bits))
    retained.retain(next)
    (next, Some(Load(inMemory.isEmpty, millisSince(startNanos), cost)))
  }

  /** The same version as one whose rows are read when needed, since it cannot be read. Null without a disk. */
  private val fallback: Version => Version = if (storage == null) null
  else { version =>
    // Without an attempt it was never stored: version 0, or the base of a version that is imported.
    if (version.attempt == Attempt.None) bucketed(version.number).empty(version.schema, version.number)
    else {
      val (answer, content, cost) = find(version.number, version.attempt)
      counters.add(cost)
      bucketed(answer.version).absent(answer.version, answer.attempt, answer.schema, content.keys, content.bits)
    }
  }

  private def find(version: Long, attempt: Attempt): (Found, Content, Map[String, Long]) =
    client.converse(_.find(store, client.settings.run, version, attempt, deadlineSeconds))

  private def bucketed(startsAt: Long): BucketedVersions = {
    val cache = BucketCache.of(client.settings.memory.heapBytes)
    new BucketedVersions(cache, new BucketReads(client, counters, loaders, Some(cache)), startsAt)
  }

  private def millisSince(startNanos: Long): Long = NANOSECONDS.toMillis(System.nanoTime() - startNanos)
}

private[spark] object VersionLoader {
  private val log = LoggerFactory.getLogger("io.dynastate.Provider")
  /** Smaller versions are loaded before reading single buckets would pay. */
  @volatile private[spark] var backgroundRowsMin = 100000L
  /** A thread for each load in the background: at most one for each store of the executor. */
  private[spark] val loaders: ExecutorService = Executors.newCachedThreadPool(new DaemonThreads("dynastate-loader"))
}
