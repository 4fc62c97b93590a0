package org.apache.spark.sql.dynastate.upstream

import java.util.UUID

import scala.util.{Random, Try}

import io.dynastate.spark.{DynamoDBStateStoreProvider, ProviderSettings}
import org.apache.hadoop.conf.Configuration

import org.apache.spark.sql.execution.streaming.state._
import org.apache.spark.sql.internal.SQLConf

/** Spark's contract of a state store provider. All that is ours is how a provider is made, and how its rows are read.
 */
class DynamoDBStateStoreSuite extends StateStoreSuiteBase[DynamoDBStateStoreProvider] {
  import StateStoreTestsHelper.{keyRowToData, keySchema, newDir, valueRowToData, valueSchema}

  /** No test here makes more versions of one store. */
  private val VersionsMax = 64
  private val Settings = "spark.sql.streaming.stateStore."

  override def getDefaultSQLConf(minDeltasForSnapshot: Int, numOfVersToRetainInMemory: Int): SQLConf = {
    val conf = new SQLConf()
    sys.props.foreach { case (name, value) => if (name.startsWith(Settings)) conf.setConfString(name, value) }
    conf.setConf(SQLConf.STATE_STORE_MIN_DELTAS_FOR_SNAPSHOT, minDeltasForSnapshot)
    conf.setConf(SQLConf.MAX_BATCHES_TO_RETAIN_IN_MEMORY, numOfVersToRetainInMemory)
    conf.setConf(SQLConf.MIN_BATCHES_TO_RETAIN, 2)
    conf.setConf(SQLConf.STATE_STORE_COMPRESSION_CODEC, SQLConf.get.stateStoreCompressionCodec)
    conf
  }

  private def defaultConf: SQLConf = getDefaultSQLConf(SQLConf.STATE_STORE_MIN_DELTAS_FOR_SNAPSHOT.defaultValue.get,
    SQLConf.MAX_BATCHES_TO_RETAIN_IN_MEMORY.defaultValue.get)

  private def anyStore: StateStoreId = StateStoreId(newDir(), Random.nextInt(), 0)

  private def provider(id: StateStoreId, prefixColumns: Int = 0,
      conf: SQLConf = defaultConf): DynamoDBStateStoreProvider = {
    val hadoopConf = new Configuration
    hadoopConf.set(ProviderSettings.RunId, UUID.randomUUID().toString)
    val provider = new DynamoDBStateStoreProvider
    provider.init(id, keySchema, valueSchema, prefixColumns, new StateStoreConf(conf), hadoopConf)
    provider
  }

  override def newStoreProvider(): DynamoDBStateStoreProvider = provider(anyStore)
  override def newStoreProvider(id: StateStoreId): DynamoDBStateStoreProvider = provider(id)
  override def newStoreProvider(minDeltasForSnapshot: Int, numOfVersToRetainInMemory: Int): DynamoDBStateStoreProvider =
    provider(anyStore, conf = getDefaultSQLConf(minDeltasForSnapshot, numOfVersToRetainInMemory))
  override def newStoreProvider(numPrefixCols: Int): DynamoDBStateStoreProvider = provider(anyStore, numPrefixCols)

  override def getLatestData(of: DynamoDBStateStoreProvider): Set[((String, Int), Int)] = getData(of, -1)

  /** Rows of a version, read by another provider; of the newest one where the version is negative. */
  override def getData(of: DynamoDBStateStoreProvider, version: Int): Set[((String, Int), Int)] = {
    val reader = provider(of.stateStoreId)
    def rows(version: Int): Set[((String, Int), Int)] = {
      val store = reader.getReadStore(version)
      try store.iterator().map(row => keyRowToData(row.key) -> valueRowToData(row.value)).toSet
      finally store.abort()
    }
    try {
      if (version >= 0) rows(version)
      else Iterator.range(VersionsMax, -1, -1).map(version => Try(rows(version))).collectFirst {
        case found if found.isSuccess => found.get
      }.get
    } finally reader.close()
  }
}
