package org.apache.spark.sql.dynastate

import org.apache.spark.{QueryContext, SparkException}
import org.apache.spark.sql.catalyst.expressions.UnsafeRow
import org.apache.spark.sql.errors.QueryExecutionErrors
import org.apache.spark.sql.execution.streaming.state.RecordType
import org.apache.spark.util.NextIterator

/** Spark's own errors that only code below `org.apache.spark.sql` may make. */
object SparkInternals {
  def unexpectedVersion(version: Long): Throwable = QueryExecutionErrors.unexpectedStateStoreVersion(version)

  /** Spark shows its user the message only, not the cause: so it carries what the cause says. */
  def failedToCommit(store: String, cause: Throwable): Throwable =
    QueryExecutionErrors.failedToCommitStateFileError(s"$store (${cause.getMessage})", cause)

  /** The same for a version that cannot be opened; Spark's own message of this error has no room for a reason. */
  def cannotLoad(cause: Throwable): Throwable = {
    val condition = "CANNOT_LOAD_STATE_STORE.UNCATEGORIZED"
    new SparkException(s"[$condition] An error occurred during loading state: ${cause.getMessage}", cause, Some(condition),
      Map.empty[String, String], Array.empty[QueryContext])
  }
}

/** Spark's own kind of iterator, which only code below `org.apache.spark` may name. */
abstract class ChangeIterator extends NextIterator[(RecordType.Value, UnsafeRow, UnsafeRow, Long)]
