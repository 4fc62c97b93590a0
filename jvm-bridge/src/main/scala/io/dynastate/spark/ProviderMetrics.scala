package io.dynastate.spark

import java.util.concurrent.ConcurrentHashMap

import io.dynastate.memory.DiskUse

import org.apache.spark.sql.execution.streaming.state.{StateStoreCustomMetric => Metric}
import org.apache.spark.sql.execution.streaming.state.{StateStoreCustomSumMetric => Sum}
import org.apache.spark.sql.execution.streaming.state.StateStoreCustomTimingMetric

/** Custom metrics in query progress and in the SQL tab; docs/metrics.md says what each of them counts. */
object ProviderMetrics {
  /** Counters of the engine, by their names in the protocol. */
  private val counterMetrics: Seq[(String, Metric)] = Seq(
    "requests" -> Sum("dynastateRequests", "DynamoDB requests"),
    "retries" -> Sum("dynastateRetries", "DynamoDB requests sent again"),
    "throttles" -> Sum("dynastateThrottles", "DynamoDB requests throttled"),
    "writeUnits" -> Sum("dynastateWriteUnits", "DynamoDB write units"),
    "readUnits" -> Sum("dynastateReadUnits", "DynamoDB read units"),
    "itemsWritten" -> Sum("dynastateItemsWritten", "DynamoDB items written"),
    "bytesWritten" -> Sum("dynastateBytesWritten", "bytes written to DynamoDB"),
    "bytesRead" -> Sum("dynastateBytesRead", "bytes read from DynamoDB"),
    "cacheHits" -> Sum("dynastateItemCacheHits", "items found in the sidecar's memory"),
    "cacheMisses" -> Sum("dynastateItemCacheMisses", "items of parts and buckets read from DynamoDB"),
    "bucketsRead" -> Sum("dynastateBucketsRead", "buckets read because they were not in memory"),
    "nanodollars" -> Sum("dynastateNanodollars", "price of requests, in billionths of a dollar"),
    "puts" -> Sum("dynastatePuts", "S3 requests that write or list objects"),
    "gets" -> Sum("dynastateGets", "S3 requests that read objects"),
    "objectBytesWritten" -> Sum("dynastateObjectBytesWritten", "bytes written to S3"),
    "objectBytesRead" -> Sum("dynastateObjectBytesRead", "bytes read from S3"),
    "parts" -> Sum("dynastateParts", "parts written"))

  /** Counters of maintenance. */
  private val maintenance: Seq[(String, Metric)] = Seq(
    "requests" -> Sum("dynastateMaintenanceRequests", "DynamoDB requests of snapshots and clean-up"),
    "writeUnits" -> Sum("dynastateMaintenanceWriteUnits", "DynamoDB write units of snapshots"),
    "readUnits" -> Sum("dynastateMaintenanceReadUnits", "DynamoDB read units of snapshots and clean-up"),
    "deleteUnits" -> Sum("dynastateDeleteUnits", "DynamoDB write units of deletes"),
    "itemsDeleted" -> Sum("dynastateItemsDeleted", "DynamoDB items deleted"),
    "puts" -> Sum("dynastateMaintenancePuts", "S3 requests of maintenance that write or list objects"),
    "gets" -> Sum("dynastateMaintenanceGets", "S3 requests of maintenance that read objects"),
    "nanodollars" -> Sum("dynastateMaintenanceNanodollars", "price of maintenance, in billionths of a dollar"))

  /** What the store takes in DynamoDB and S3 after the commit. */
  private val stored: Seq[(String, Metric)] = Seq(
    "storedItems" -> Sum("dynastateStoredItems", "DynamoDB items stored"),
    "storedBytes" -> Sum("dynastateStoredBytes", "bytes stored in DynamoDB"),
    "storedObjectBytes" -> Sum("dynastateStoredObjectBytes", "bytes stored in S3"))

  /** Rows on local disk. */
  private val disk: Seq[(Metric, DiskUse => Long)] =
    Seq(Sum("dynastateDiskBytes", "bytes of rows on local disk") -> (_.bytes),
      Sum("dynastateDiskReads", "reads of local disk") -> (_.reads),
      Sum("dynastatePagesSpilled", "pages of rows moved to local disk") -> (_.spilled))

  private val loadMs = StateStoreCustomTimingMetric("dynastateLoadMs", "time to load state from DynamoDB")
  private val commitMs = StateStoreCustomTimingMetric("dynastateCommitMs", "time to commit to DynamoDB")
  private val cacheHits = Sum("dynastateCacheHits", "versions found in the executor's memory")
  private val cacheMisses = Sum("dynastateCacheMisses", "versions loaded from DynamoDB")
  private val internalKeys = Sum("dynastateInternalKeys", "keys of Spark's own bookkeeping, such as timers")
  /** By the name that Spark's HDFS-backed provider gives it. */
  private val forcedSnapshots = Sum("forceSnapshotCount", "stores of which Spark forced a snapshot")

  val all: Seq[Metric] = (counterMetrics ++ maintenance ++ stored).map(_._2) ++ disk.map(_._1) ++
    Seq(loadMs, commitMs, cacheHits, cacheMisses, internalKeys, forcedSnapshots)

  /** The metrics of one batch of one store, and of its maintenance since the last one. `loaded` is None if the version
   * was in memory; `read` has the counters of single buckets and of loads in the background, `used` those of local disk
   * since the store was opened.
   */
  def of(loaded: Option[Load], read: Map[String, Long], committed: Map[String, Long], maintained: Map[String, Long],
      used: DiskUse, commitMillis: Long, internal: Long, forcesSnapshot: Boolean): Map[Metric, Long] = {
    val fromEngine = counterMetrics.map { case (name, metric) =>
      metric -> Seq(committed, read, loaded.fold(Map.empty[String, Long])(_.counters)).map(_.getOrElse(name, 0L)).sum
    }
    val fromMaintenance = maintenance.map { case (name, metric) => metric -> maintained.getOrElse(name, 0L) }
    val fromCommit = stored.map { case (name, metric) => metric -> committed.getOrElse(name, 0L) }
    val fromDisk = disk.map { case (metric, of) => metric -> of(used) }
    (fromEngine ++ fromMaintenance ++ fromCommit ++ fromDisk).toMap ++ Map(
      loadMs -> (loaded.map(_.millis).getOrElse(0L) + read.getOrElse("loadMs", 0L)), commitMs -> commitMillis,
      internalKeys -> internal, forcedSnapshots -> (if (forcesSnapshot) 1L else 0L),
      cacheHits -> (if (loaded.exists(_.missed)) 0L else 1L), cacheMisses -> (if (loaded.exists(_.missed)) 1L else 0L))
  }

  private val Hidden = "-keyToNumValues"
  private val Shown = "-keyWithIndexToValue"
  private val hidden = new ConcurrentHashMap[String, (Long, Map[Metric, Long])]

  /** The metrics of a store of a join. Spark asks both stores of a side, in this order, and reports the custom metrics
   * of the second only (SymmetricHashJoinStateManagerV1.metrics): those of the first are kept here and added to them.
   */
  def ofJoin(store: String, version: Long, ownMetrics: Map[Metric, Long]): Map[Metric, Long] =
    if (store.endsWith(Hidden)) {
      hidden.put(store.stripSuffix(Hidden), (version, ownMetrics))
      ownMetrics
    } else if (store.endsWith(Shown)) {
      Option(hidden.get(store.stripSuffix(Shown))).filter(_._1 == version).fold(ownMetrics) { case (_, other) =>
        ownMetrics.map { case (metric, value) => metric -> (value + other.getOrElse(metric, 0L)) }
      }
    } else ownMetrics

  def forget(store: String): Unit = hidden.remove(store.stripSuffix(Hidden))
}

/** Cost of opening a version through the engine. `missed`: it was not in memory. */
final case class Load(missed: Boolean, millis: Long, counters: Map[String, Long])
