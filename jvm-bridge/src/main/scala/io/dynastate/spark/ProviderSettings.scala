package io.dynastate.spark

import java.nio.charset.StandardCharsets.UTF_8
import java.security.MessageDigest
import java.util.HexFormat

import org.apache.hadoop.conf.Configuration
import org.json4s.JsonAST.{JObject, JString}
import org.json4s.jackson.JsonMethods.{compact, render}

import org.apache.spark.SparkEnv
import org.apache.spark.sql.execution.streaming.state.{StateStoreConf, StateStoreId}

/**
 * What a provider takes from the configuration. Values are checked by the engine, in one place for every user of it.
 *
 * @param python          interpreter of the sidecar
 * @param engine          JSON object of the settings, without their prefix
 * @param store           `{namespace}/{operator id}/{partition id}/{store name}`
 * @param deadlineSeconds how long an answer may take. The engine's own deadlines are shorter; this one only frees a task
 *                        from a sidecar that hangs
 * @param memoryBytes     heap that rows of all stores of this executor may take; 0: no bound
 */
final case class ProviderSettings(python: String, engine: String, store: String, deadlineSeconds: Long, memoryBytes: Long)

object ProviderSettings {
  val Prefix = "spark.sql.streaming.stateStore.dynastate."
  private val DefaultDeadlineSeconds = 60L

  def apply(id: StateStoreId, conf: StateStoreConf, hadoopConf: Configuration): ProviderSettings = {
    val configured = conf.sqlConfs.collect { case (name, value) if name.startsWith(Prefix) => name.stripPrefix(Prefix) -> value }
    val namespace = configured.get("namespace").filter(_.nonEmpty).getOrElse(digest(id.checkpointRootLocation))
    // A number that is none is the engine's to refuse, with a message that names the setting.
    val memoryMb = configured.get("memoryMb").flatMap(_.toLongOption).getOrElse(0L)
    val requestDeadline = configured.get("requestDeadlineS").flatMap(_.toLongOption).getOrElse(DefaultDeadlineSeconds)
    ProviderSettings(
      python = configured.get("python").filter(_.nonEmpty).getOrElse(sparkPython(hadoopConf)),
      engine = compact(render(JObject(configured.toList.sortBy(_._1).map { case (name, value) => name -> JString(value) }))),
      store = s"$namespace/${id.operatorId}/${id.partitionId}/${id.storeName}",
      deadlineSeconds = 15 * requestDeadline + 60,
      memoryBytes = memoryMb << 20)
  }

  /** First 32 hex digits of SHA-256 over the checkpoint's state root (docs/storage-format.md, "Names"). */
  def digest(checkpointRoot: String): String =
    HexFormat.of().formatHex(MessageDigest.getInstance("SHA-256").digest(checkpointRoot.getBytes(UTF_8))).take(32)

  /** The interpreter PySpark itself would use on this executor. */
  private def sparkPython(hadoopConf: Configuration): String =
    Option(hadoopConf.get("spark.pyspark.python"))
      .orElse(Option(SparkEnv.get).flatMap(_.conf.getOption("spark.pyspark.python")))
      .orElse(sys.env.get("PYSPARK_PYTHON"))
      .filter(_.nonEmpty)
      .getOrElse("python3")
}
