package io.dynastate.spark

import java.nio.ByteBuffer
import java.util.concurrent.TimeUnit.NANOSECONDS

import scala.util.control.NonFatal

import io.dynastate.bridge.{Connection, Wanted}
import io.dynastate.memory.{BucketSink, ChangedBuckets, SnapshotRows, Version}
import org.slf4j.LoggerFactory

import org.apache.spark.sql.execution.streaming.state.StateStoreConf

/** Snapshots and clean-up of one store, and versions that are written as a snapshot. Spark calls `snapshot` and
 * `cleanUp` in threads of its own, at the same time as tasks and each other.
 *
 * @param counters what maintenance cost
 */
private[spark] final class Maintenance(client: EngineClient, retained: RetainedVersions, conf: StateStoreConf,
    counters: PendingCounters) {
  import Maintenance.log
  import client.{deadlineSeconds, settings, store}

  /** The version that was last offered as a snapshot, and the one at which was last cleaned up; 0: none. */
  @volatile private[this] var offeredAt = 0L
  /** The version whose commit forced a snapshot; 0: none. */
  @volatile private[this] var forcedAt = 0L
  @volatile private[this] var cleanedUpAt = 0L

  /** Let the next maintenance make a snapshot, whether one is due or not. */
  def forceSnapshot(version: Version): Unit = forcedAt = version.number

  /** Offer the newest version as a snapshot, every `minDeltasForSnapshot` versions; the engine says if one is due. */
  def snapshot(): Unit = {
    val forcedVersion = forcedAt
    val least = if (forcedVersion > 0) 0 else math.max(1, conf.minDeltasForSnapshot)
    // Numbers also decrease, when a query is started again from an older batch.
    retained.newestToMaintain.filter(version => math.abs(version.number - offeredAt) >= least).foreach { newest =>
      maintain("a snapshot was not written", newest) {
        val version = if (newest.versions.isUsable) newest else newest.versions.durable(newest)
        val startNanos = System.nanoTime()
        client.converse { connection =>
          connection.snapshot(store, settings.run.id, version, version.versions.stateBytes(version), least,
            deadlineSeconds)
            .fold(counters.add, request => counters.add(sendSnapshot(connection, version, request, startNanos)))
        }
        offeredAt = version.number
        if (forcedAt == forcedVersion) forcedAt = 0
      }
    }
  }

  /** Clean up every `minVersionsToDelete` versions; at the next maintenance if it failed or left versions. */
  def cleanUp(): Unit = {
    val least = math.min(math.max(1L, Spark40.minVersionsToDelete(conf)), Int.MaxValue.toLong).toInt
    retained.newestToMaintain.filter(version =>
      cleanedUpAt == 0 || math.abs(version.number - cleanedUpAt) >= least).foreach { version =>
      maintain("nothing was cleaned up", version) {
        val startNanos = System.nanoTime()
        val most = math.max(0, Spark41.maxVersionsToDeletePerMaintenance(conf))
        val cost = client.converse(_.cleanUp(store, settings.run.id, version, conf.minVersionsToRetain, least, most,
            deadlineSeconds))
        counters.add(cost)
        val (items, rest) = (cost.getOrElse("itemsDeleted", 0L), cost.getOrElse("versionsLeft", 0L))
        cleanedUpAt = if (rest == 0) version.number else 0
        if (items > 0) log.info(s"cleaned up store=$store version=$version itemsDeleted=$items " +
          s"versionsLeft=$rest ms=${millisSince(startNanos)}")
      }
    }
  }

  /** Import a version: write all its rows, and commit it. Returns counters. */
  def importVersion(version: Version): Map[String, Long] = client.converse { connection =>
    val request =
      connection.importVersion(store, settings.run, version, version.versions.stateBytes(version), deadlineSeconds)
    sendBuckets(connection, version, request.bits, Array.fill(1 << request.bits)(true))
  }

  /** No task waits for maintenance, and the next one does what this one could not. An error that left it would make
   * Spark unload the provider, and Spark 3.5 all providers of the executor.
   */
  private def maintain(message: String, version: Version)(work: => Unit): Unit =
    try work
    catch {
      case NonFatal(e) =>
        log.warn(s"$message, and will be tried again; no state is lost store=$store version=$version: ${e.getMessage}")
    }

  /** Send the buckets that changed since the snapshot before; all, if there is none or the changes are not known. */
  private def sendSnapshot(connection: Connection, version: Version, request: Wanted,
      startNanos: Long): Map[String, Long] = {
    val marks = if (request.base == 0) null else version.versions.changed.since(request.base)
    val isSent = Array.tabulate(1 << request.bits)(bucket =>
      marks == null || ChangedBuckets.touches(marks, bucket, request.bits))
    val cost = sendBuckets(connection, version, request.bits, isSent)
    version.versions.changed.forget(version.number)
    log.info(s"snapshot store=$store version=$version base=${request.base} " +
      s"buckets=${isSent.count(identity)}/${isSent.length} bytesWritten=${cost.getOrElse("bytesWritten", 0L)} " +
      s"writeUnits=${cost.getOrElse("writeUnits", 0L)} ms=${millisSince(startNanos)}")
    cost
  }

  private def sendBuckets(connection: Connection, version: Version, bits: Int,
      isSent: Array[Boolean]): Map[String, Long] = {
    val sink = new BucketSink {
      override def bucket(number: Int): Unit = connection.bucket(number, deadlineSeconds)

      override def append(records: Int, hashMin: Int, hashMax: Int, chunk: Array[Byte], length: Int): Unit = {
        // A snapshot replaces what it was made of.
        client.verified(ByteBuffer.wrap(chunk, 0, length))
        connection.append(records, hashMin, hashMax, chunk, length, deadlineSeconds)
      }
    }
    SnapshotRows.send(version, bits, isSent, sink)
    connection.endSnapshot(deadlineSeconds)
  }

  private def millisSince(startNanos: Long): Long = NANOSECONDS.toMillis(System.nanoTime() - startNanos)
}

private[spark] object Maintenance {
  private val log = LoggerFactory.getLogger("io.dynastate.Provider")
}
