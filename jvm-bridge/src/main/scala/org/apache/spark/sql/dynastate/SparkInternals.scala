package org.apache.spark.sql.dynastate

import org.apache.spark.sql.errors.QueryExecutionErrors

/** Spark's own errors that only code below `org.apache.spark.sql` may make. */
object SparkInternals {
  def unexpectedVersion(version: Long): Throwable = QueryExecutionErrors.unexpectedStateStoreVersion(version)

  def failedToCommit(store: String, cause: Throwable): Throwable = QueryExecutionErrors.failedToCommitStateFileError(store, cause)
}
