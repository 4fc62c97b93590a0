package org.apache.spark.sql.dynastate.internals

import java.nio.file.Path

import org.apache.spark.{QueryContext, SparkConf, SparkContext, SparkEnv, SparkException}
import org.apache.spark.sql.catalyst.expressions.UnsafeRow
import org.apache.spark.sql.execution.streaming.state.RecordType
import org.apache.spark.util.{NextIterator, Utils}

/** What only code in `org.apache.spark.sql` can reach: Spark's own errors, and its folders on local disk and cores. */
object SparkInternals {
  def unexpectedVersion(version: Long): Throwable = SparkErrors.unexpectedVersion(version)

  /** With the message of the cause, because Spark shows its user the message only. */
  def failedToCommit(store: String, cause: Throwable): Throwable =
    SparkErrors.failedToCommit(s"$store (${cause.getMessage})", cause)

  /** For a version that cannot be opened; Spark's own message of this error has no place for a reason. */
  def cannotLoad(cause: Throwable): Throwable = {
    val condition = "CANNOT_LOAD_STATE_STORE.UNCATEGORIZED"
    new SparkException(s"[$condition] An error occurred during loading state: ${cause.getMessage}", cause,
      Some(condition), Map.empty[String, String], Array.empty[QueryContext])
  }

  /** Spark's folders on the local disks of this executor that it could make; without Spark the JVM's temporary one. */
  def localFolders: Seq[Path] =
    Option(SparkEnv.get).map(_.blockManager.diskBlockManager.localDirs.toSeq.map(_.toPath.toAbsolutePath))
      .getOrElse(Seq(Path.of(System.getProperty("java.io.tmpdir")).toAbsolutePath))

  /** The number of tasks that run on this executor at once: its cores, and at most those of the machine. */
  def executorCores: Int = {
    val processors = Runtime.getRuntime.availableProcessors
    Option(SparkEnv.get).fold(processors)(env => coresOf(env.conf, processors))
  }

  /** Whether the driver is the executor, too. */
  def isLocal(conf: SparkConf): Boolean = Utils.isLocalMaster(conf)

  def coresOf(conf: SparkConf, processors: Int): Int = math.min(processors,
    if (Utils.isLocalMaster(conf)) SparkContext.numDriverCores(conf.get("spark.master"), conf)
    else conf.getInt("spark.executor.cores", processors))

  /** Spark's error for a row that does not fit its checksum. */
  object WrongRowChecksum {
    def unapply(e: SparkException): Boolean =
      SparkErrors.conditionOf(e) == "STATE_STORE_ROW_CHECKSUM_VERIFICATION_FAILED"
  }
}

/** Spark's own kind of iterator, which only code in `org.apache.spark` can name. */
abstract class ChangeIterator extends NextIterator[(RecordType.Value, UnsafeRow, UnsafeRow, Long)]
