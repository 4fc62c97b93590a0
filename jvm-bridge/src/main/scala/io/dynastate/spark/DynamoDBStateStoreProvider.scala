package io.dynastate.spark

import io.dynastate.DynastateException
import org.apache.hadoop.conf.Configuration

import org.apache.spark.sql.dynastate.internals.{ChangeIterator, SparkInternals}
import org.apache.spark.sql.execution.streaming.state._
import org.apache.spark.sql.types.StructType

/** Keeps a Structured Streaming query's state in DynamoDB.
 *
 * Life cycle: made by reflection, `init` once (no I/O: Spark holds an executor-wide lock), then any number of stores,
 * several of them open at once, until `close`. It retains the last `maxBatchesToRetainInMemory` versions in memory.
 *
 * It is the facade that Spark calls: `ProviderSettings` has identity and settings, `FamilyRegistry` the column
 * families, `VersionLoader` opens versions, `RetainedVersions` holds them, `Maintenance` writes snapshots and cleans
 * up, `ChangeReader` is the change feed, `ProviderMetrics` makes the metrics, `PartitionMarker` leaves a file for
 * Spark's state reader. Each of them is safe for threads.
 */
class DynamoDBStateStoreProvider extends StateStoreProvider43 {
  private[this] var id: StateStoreId = _
  private[this] var conf: StateStoreConf = _
  private[this] var hadoopConf: Configuration = _
  private[this] var loader: VersionLoader = _
  private[this] val readStores = new ReadStores41

  private[spark] var client: EngineClient = _
  private[spark] var families: FamilyRegistry = _
  private[spark] var retained: RetainedVersions = _
  private[spark] var maintenance: Maintenance = _
  private[spark] var marker: PartitionMarker = _
  /** Counters since the last commit: of buckets and background loads, and of maintenance. */
  private[spark] val read, maintained = new PendingCounters

  override def init(stateStoreId: StateStoreId, keySchema: StructType, valueSchema: StructType,
      keyStateEncoderSpec: KeyStateEncoderSpec, useColumnFamilies: Boolean, storeConfs: StateStoreConf,
      hadoopConf: Configuration, useMultipleValuesPerKey: Boolean,
      stateSchemaProvider: Option[StateSchemaProvider]): Unit = {
    require(!useMultipleValuesPerKey || useColumnFamilies, "multiple values per key need column families")
    this.id = stateStoreId
    this.conf = storeConfs
    this.hadoopConf = hadoopConf
    client = new EngineClient(ProviderSettings(stateStoreId, storeConfs, hadoopConf),
      RowVerifier.ofAll(stateStoreId, storeConfs))
    val default = ColumnFamily(ColumnFamily.Default, keyStateEncoderSpec, valueSchema,
      useMultipleValuesPerKey, internal = false)
    families = new FamilyRegistry(default, useColumnFamilies, stateStoreId, storeConfs, stateSchemaProvider)
    marker = new PartitionMarker(stateStoreId, hadoopConf, client.store)
    retained = new RetainedVersions(storeConfs.maxVersionsToRetainInMemory)
    loader = new VersionLoader(client, retained, read)
    maintenance = new Maintenance(client, retained, storeConfs, maintained)
  }

  override def stateStoreId: StateStoreId = id

  override def getStore(version: Long, stateStoreCkptId: Option[String], forceSnapshotOnCommit: Boolean,
      loadEmpty: Boolean): StateStore = {
    marker.find()
    // At version 0 every store is empty. Above it, the next version has no parent, and is written with all its rows.
    if (loadEmpty && version > 0) new DynamoDBStateStore(this, loader.empty(version), None, None, isImport = true)
    else readStores.take(version, stateStoreCkptId) match {
      case Some(read) => upgradeReadStoreToWriteStore(read, version, stateStoreCkptId, forceSnapshotOnCommit)
      case None =>
        val (base, load) = loader.open(version, stateStoreCkptId)
        new DynamoDBStateStore(this, base, stateStoreCkptId, load, forceSnapshotOnCommit)
    }
  }

  override def getReadStore(version: Long, uniqueId: Option[String]): ReadStateStore = {
    val (base, load) = loader.open(version, uniqueId)
    val store = new DynamoDBReadStateStore(this, base, load)
    readStores.opened(store, uniqueId)
    store
  }

  /** The read store may be of an earlier instance of this provider: it holds its version itself. */
  override def upgradeReadStoreToWriteStore(readStore: ReadStateStore, version: Long, uniqueId: Option[String],
      forceSnapshotOnCommit: Boolean): StateStore =
    readStore match {
      case read: DynamoDBReadStateStore =>
        require(read.version == version && read.id == id,
          s"a read store of ${read.id} at version ${read.version} cannot be written as $id at $version")
        marker.find()
        new DynamoDBStateStore(this, read.base, uniqueId, read.load, forceSnapshotOnCommit)
      case other => throw new IllegalArgumentException(s"not a read store of dynastate: ${other.getClass.getName}")
    }

  /** Every version can be opened, and has the same rows whichever snapshot it is read from. */
  override def replayStateFromSnapshot(snapshotVersion: Long, endVersion: Long, readOnly: Boolean,
      snapshotVersionStateStoreCkptId: Option[String], endVersionStateStoreCkptId: Option[String]): StateStore = {
    validateRange(snapshotVersion, endVersion)
    getStore(endVersion, endVersionStateStoreCkptId, forceSnapshotOnCommit = false, loadEmpty = false)
  }

  override def replayReadStateFromSnapshot(snapshotVersion: Long, endVersion: Long,
      snapshotVersionStateStoreCkptId: Option[String], endVersionStateStoreCkptId: Option[String]): ReadStateStore = {
    validateRange(snapshotVersion, endVersion)
    getReadStore(endVersion, endVersionStateStoreCkptId)
  }

  override def getStateStoreChangeDataReader(startVersion: Long, endVersion: Long, colFamilyNameOpt: Option[String],
      endVersionStateStoreCkptId: Option[String]): ChangeIterator = {
    validateRange(startVersion, endVersion)
    val family = colFamilyNameOpt.getOrElse(ColumnFamily.Default)
    try new ChangeReader(client, families, family, startVersion, endVersion,
        loader.attemptOf(endVersion, endVersionStateStoreCkptId))
    catch { case e: DynastateException => throw SparkInternals.cannotLoad(e) }
  }

  private def validateRange(from: Long, to: Long): Unit = {
    if (from < 1) throw SparkInternals.unexpectedVersion(from)
    if (to < from) throw SparkInternals.unexpectedVersion(to)
  }

  override def doMaintenance(): Unit = {
    doSnapshotMaintenance()
    doCleanupMaintenance()
  }

  override def doSnapshotMaintenance(): Unit = maintenance.snapshot()

  override def doCleanupMaintenance(): Unit = maintenance.cleanUp()

  override def close(): Unit = if (client != null) {
    retained.close()
    ProviderMetrics.forget(client.store)
  }

  override def supportedCustomMetrics: Seq[StateStoreCustomMetric] = ProviderMetrics.all

  override def toString: String = s"DynamoDBStateStoreProvider[store=${if (client == null) "?" else client.store}]"

  private[spark] def usesCheckpointIds: Boolean = Spark40.usesCheckpointIds(conf)

  private[spark] def hasRowChecksums: Boolean = RowVerifier.isEnabled(conf)

  /** For the rows that one store reads; null: not wanted. */
  private[spark] def readVerifier(): RowVerifier = RowVerifier.ofReads(id, conf)

  private[spark] def reportCommit(newVersion: Long): Unit = Spark41.reportCommit(newVersion, id, conf, hadoopConf)
}
