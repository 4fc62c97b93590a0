package io.dynastate.spark

import java.nio.charset.StandardCharsets.UTF_8
import java.security.MessageDigest
import java.util.HexFormat

import scala.util.Try

import io.dynastate.{DynastateException, ErrorKind}
import io.dynastate.CollectionConverters._
import io.dynastate.bridge.{QueryRun, Sidecar}
import io.dynastate.memory.EncodedRow
import org.apache.hadoop.conf.Configuration
import org.apache.hadoop.fs.{FileSystem, Path}
import org.json4s.JsonAST.{JObject, JString}
import org.json4s.jackson.JsonMethods.{compact, render}

import org.apache.spark.{SparkConf, SparkEnv, TaskContext}
import org.apache.spark.sql.dynastate.internals.SparkInternals
import org.apache.spark.sql.execution.streaming.state.{StateStoreConf, StateStoreId}
import org.apache.spark.unsafe.Platform

/** Settings and identity of a provider. The sidecar validates the settings that it gets, in one place for every user of
 * the engine; the others are validated here.
 *
 * @param python          interpreter of the sidecar
 * @param engine          JSON object of the settings, without their prefix and those that only the provider needs:
 *                        queries with equal ones share connections
 * @param store           `{namespace}/{operator id}/{partition id}/{store name}`
 * @param sidecar         number of the sidecar of this executor that serves the store
 * @param run             the run of the query
 * @param deadlineSeconds limit of the wait for an answer. The engine's own deadlines are shorter; this one only frees a
 *                        task from a sidecar that hangs
 * @param memory          where the rows of all stores of this executor may be
 */
final case class ProviderSettings(python: String, engine: String, store: String, sidecar: Int, run: QueryRun,
    deadlineSeconds: Long, memory: MemorySettings) {
  /** Limit of the heap that rows take where there is no disk tier; 0: none. */
  def memoryBytes: Long = if (memory.isHeapGiven) memory.heapBytes else 0L
}

object ProviderSettings {
  val Prefix = "spark.sql.streaming.stateStore.dynastate."
  private val DefaultDeadlineSeconds = 60L
  /** Settings that the sidecar does not get. */
  private val OfProvider = Seq("namespace", "python", "sidecars") ++ MemorySettings.Names
  private val SidecarsMax = 64L
  /** Their tasks keep a sidecar busy for half of the time (docs/decisions/0021-several-sidecars.md). */
  private val CoresOfSidecar = 8
  /** The interpreter of the program that called `configure`. */
  private val DriverPython = "spark.dynastate.driverPython"
  private val PySparkPython = "spark.pyspark.python"
  /** Of checkpoints that are in DynamoDB. */
  val CheckpointScheme = "dynastate"
  val QueryId = "sql.streaming.queryId"
  val RunId = "sql.streaming.runId"

  def apply(id: StateStoreId, conf: StateStoreConf, hadoopConf: Configuration): ProviderSettings = {
    val location = locationOf(id.checkpointRootLocation, hadoopConf)
    val options =
      conf.sqlConfs.collect { case (name, value) if name.startsWith(Prefix) => name.stripPrefix(Prefix) -> value }
    val namespace = namespaceOf(options.getOrElse("namespace", ""), location)
    val store = s"$namespace/${id.operatorId}/${id.partitionId}/${id.storeName}"
    ProviderSettings(python = pythonOf(options, Option(hadoopConf.get(PySparkPython))),
      engine = engineOf(options), store = store, sidecar = sidecarOf(store, sidecarsOf(options)),
      run = QueryRun(id = Option(hadoopConf.get(RunId)).getOrElse(throw Spark40.noRunId(store)),
        queryId = queryId(hadoopConf), checkpoint = location), deadlineSeconds = deadlineOf(options),
      memory = MemorySettings.of(options))
  }

  /** Interpreter and engine of an executor's tasks, whatever their sessions set, and the number of its sidecars. */
  def ofExecutor(conf: SparkConf): (String, String, Int) = {
    val options = conf.getAllWithPrefix(Prefix).toMap
    (pythonOf(options, conf.getOption(PySparkPython)), engineOf(options), sidecarsOf(options))
  }

  /** Interpreter, engine and deadline, as of a provider, of who reads and writes a checkpoint in DynamoDB. */
  def ofCheckpoint(hadoopConf: Configuration): (String, String, Long) = {
    // The conf of a session has them all; that of a Hadoop file system may have been made without a session.
    val application = Option(SparkEnv.get).map(_.conf.getAllWithPrefix(Prefix).toMap).getOrElse(Map.empty)
    val options = application ++ hadoopConf.getPropsWithPrefix(Prefix).asScala
    val ofDriver = Option(SparkEnv.get).filter(_.executorId == "driver").flatMap(env => pythonOfDriver(env.conf))
    (ofDriver.getOrElse(pythonOf(options, Option(hadoopConf.get(PySparkPython)))), engineOf(options),
      deadlineOf(options))
  }

  /** Interpreter of a driver's sidecar, where executors may have another; without it that of the executors. */
  def pythonOfDriver(conf: SparkConf): Option[String] =
    if (SparkInternals.isLocal(conf)) None
    else conf.getOption(DriverPython).orElse(conf.getOption("spark.pyspark.driver.python"))

  private def namespaceOf(text: String, location: String): String =
    if (text.isEmpty) namespaceOfUri(location).getOrElse(digest(location))
    else if (namespaceOfUri(location).exists(_ != text)) refuse("namespace",
      s"${namespaceOfUri(location).get}, as in the checkpoint $location, or not set", text)
    else if (text.matches("[A-Za-z0-9._-]{1,128}")) text
    else refuse("namespace", "1 to 128 characters of A-Z a-z 0-9 . _ -", text)

  /** The sidecar refuses what is not a number, with a message that names the setting. */
  private def deadlineOf(options: Map[String, String]): Long =
    15 * options.get("requestDeadlineS").flatMap(text => Try(text.toLong).toOption).getOrElse(
      DefaultDeadlineSeconds) + 60

  /** The namespace of a checkpoint that is in DynamoDB, `dynastate://NAMESPACE/NAME`. */
  private def namespaceOfUri(location: String): Option[String] =
    Some(location).filter(_.startsWith(s"$CheckpointScheme://"))
      .map(_.stripPrefix(s"$CheckpointScheme://").takeWhile(_ != '/'))

  private def engineOf(options: Map[String, String]): String = {
    val sidecars = sidecarsOf(options)
    // One of several has its part of the bounds on the executor.
    val passedOn = options -- OfProvider ++ (if (sidecars > 1) Some("sidecars" -> sidecars.toString) else None)
    compact(render(JObject(passedOn.toList.sortBy(_._1).map { case (name, value) => name -> JString(value) })))
  }

  /** The number of sidecars of this executor. */
  private def sidecarsOf(options: Map[String, String]): Int =
    options.get("sidecars").map(wholeNumber("sidecars", _, 1, SidecarsMax))
      .getOrElse(math.min(SidecarsMax, (SparkInternals.executorCores + CoresOfSidecar - 1) / CoresOfSidecar)).toInt

  /** By a hash that leaves no pattern: Spark may give an executor every other partition. */
  private def sidecarOf(store: String, sidecars: Int): Int = {
    val name = store.getBytes(UTF_8)
    Integer.remainderUnsigned(EncodedRow.hash(name, Platform.BYTE_ARRAY_OFFSET.toLong, name.length), sidecars)
  }

  private[spark] def wholeNumber(name: String, text: String, least: Long, most: Long): Long =
    if (text.matches("[0-9]{1,9}") && text.toLong >= least && text.toLong <= most) text.toLong
    else refuse(name, s"a whole number from $least to $most", text)

  private[spark] def refuse(name: String, what: String, got: String): Nothing = throw new DynastateException(
    ErrorKind.Configuration, s"spark.sql.streaming.stateStore.dynastate.$name must be $what got='$got'")

  /** First 32 hex digits of SHA-256 over the location of the checkpoint's state (docs/storage-format.md, "Names"). */
  def digest(location: String): String =
    HexFormat.of().formatHex(MessageDigest.getInstance("SHA-256").digest(location.getBytes(UTF_8))).take(32)

  /** A folder in one spelling, whether Spark or a user wrote it (docs/storage-format.md, "Names"). */
  def locationOf(folder: String, hadoopConf: Configuration): String = {
    val path = new Path(folder)
    val uri =
      if (path.toUri.getScheme == null) path.makeQualified(FileSystem.getDefaultUri(hadoopConf), new Path("/"))
      else path
    uri.toString.replaceFirst("^s3[an]:", "s3:")
  }

  /** The query's id: from its session, or the checkpoint of an import; without the extension from the thread that
   * submitted the job.
   */
  private def queryId(hadoopConf: Configuration): String =
    Option(hadoopConf.get(QueryId)).orElse(Option(TaskContext.get()).flatMap(task =>
        Option(task.getLocalProperty(QueryId)))).getOrElse("")

  /** The interpreter that is configured, or that PySpark itself would use on this executor. */
  private def pythonOf(options: Map[String, String], ofSession: Option[String]): String =
    options.get("python").filter(_.nonEmpty).getOrElse(sparkPython(ofSession))

  private def sparkPython(ofSession: Option[String]): String = ofSession
    .orElse(Option(SparkEnv.get).flatMap(_.conf.getOption(PySparkPython))).orElse(sys.env.get("PYSPARK_PYTHON"))
    .filter(_.nonEmpty).getOrElse("python3")
}
