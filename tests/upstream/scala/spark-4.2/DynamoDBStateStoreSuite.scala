package org.apache.spark.sql.dynastate.upstream

import java.util.UUID

import scala.util.{Random, Try, Using}

import io.dynastate.spark.DynamoDBStateStoreProvider
import org.apache.hadoop.conf.Configuration

import org.apache.spark.sql.execution.streaming.runtime.StreamExecution
import org.apache.spark.sql.execution.streaming.state._
import org.apache.spark.sql.internal.SQLConf
import org.apache.spark.sql.types.StructType

/** Spark's contract of a state store provider. All that is ours is how a provider is made, and how its rows are read.
 */
class DynamoDBStateStoreSuite extends StateStoreSuiteBase[DynamoDBStateStoreProvider] {
  import StateStoreTestsHelper.{keyRowToData, newDir, valueRowToData}

  /** No test here makes more versions of one store. */
  private val VersionsMax = 64
  private val Settings = "spark.sql.streaming.stateStore."

  protected def hasRowChecksums: Boolean = false

  override def getDefaultSQLConf(minDeltasForSnapshot: Int, numOfVersToRetainInMemory: Int): SQLConf = {
    val conf = new SQLConf()
    sys.props.foreach { case (name, value) => if (name.startsWith(Settings)) conf.setConfString(name, value) }
    conf.setConf(SQLConf.STATE_STORE_MIN_DELTAS_FOR_SNAPSHOT, minDeltasForSnapshot)
    conf.setConf(SQLConf.MAX_BATCHES_TO_RETAIN_IN_MEMORY, numOfVersToRetainInMemory)
    conf.setConf(SQLConf.MIN_BATCHES_TO_RETAIN, 2)
    conf.setConf(SQLConf.STATE_STORE_COMPRESSION_CODEC, SQLConf.get.stateStoreCompressionCodec)
    conf.setConf(SQLConf.STATE_STORE_ROW_CHECKSUM_ENABLED, hasRowChecksums)
    conf
  }

  private def defaultConf: SQLConf = getDefaultSQLConf(SQLConf.STATE_STORE_MIN_DELTAS_FOR_SNAPSHOT.defaultValue.get,
    SQLConf.MAX_BATCHES_TO_RETAIN_IN_MEMORY.defaultValue.get)

  private def anyStore: StateStoreId = StateStoreId(newDir(), Random.nextInt(), 0)

  private def provider(id: StateStoreId, families: Boolean = false, keys: StructType = keySchema,
      encoder: KeyStateEncoderSpec = NoPrefixKeyStateEncoderSpec(keySchema), conf: SQLConf = defaultConf,
      hadoopConf: Configuration = new Configuration): DynamoDBStateStoreProvider = {
    hadoopConf.set(StreamExecution.RUN_ID_KEY, UUID.randomUUID().toString)
    val provider = newStoreProviderNoInit()
    val withFamilies: Option[StateSchemaProvider] = if (families) Some(new TestStateSchemaProvider) else None
    provider.init(id, keys, valueSchema, encoder, families, StateStoreConf(conf), hadoopConf, false, withFamilies)
    provider
  }

  override def newStoreProviderNoInit(): DynamoDBStateStoreProvider = new DynamoDBStateStoreProvider
  override def newStoreProvider(): DynamoDBStateStoreProvider = provider(anyStore)
  override def newStoreProvider(id: StateStoreId): DynamoDBStateStoreProvider = provider(id)
  override def newStoreProvider(id: StateStoreId, families: Boolean): DynamoDBStateStoreProvider =
    provider(id, families)
  override def newStoreProvider(families: Boolean): DynamoDBStateStoreProvider = provider(anyStore, families)
  override def newStoreProvider(id: StateStoreId, hadoopConf: Configuration): DynamoDBStateStoreProvider =
    provider(id, hadoopConf = hadoopConf)
  override def newStoreProvider(minDeltasForSnapshot: Int, numOfVersToRetainInMemory: Int): DynamoDBStateStoreProvider =
    provider(anyStore, conf = getDefaultSQLConf(minDeltasForSnapshot, numOfVersToRetainInMemory))
  override def newStoreProvider(keys: StructType, encoder: KeyStateEncoderSpec,
      families: Boolean): DynamoDBStateStoreProvider = provider(anyStore, families, keys, encoder)
  override def newStoreProviderWithClonedConf(id: StateStoreId): DynamoDBStateStoreProvider =
    provider(id, conf = defaultConf.clone())

  override def getLatestData(of: DynamoDBStateStoreProvider, families: Boolean): Set[((String, Int), Int)] =
    getData(of, -1, families)

  /** Rows of a version, read by another provider; of the newest one where the version is negative. */
  override def getData(of: DynamoDBStateStoreProvider, version: Int, families: Boolean): Set[((String, Int), Int)] = {
    val reader = provider(of.stateStoreId, families)
    def rows(version: Int): Set[((String, Int), Int)] = {
      val store = reader.getReadStore(version, None)
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

class DynamoDBStateStoreSuiteWithRowChecksum extends DynamoDBStateStoreSuite {
  override protected def hasRowChecksums: Boolean = true
}
