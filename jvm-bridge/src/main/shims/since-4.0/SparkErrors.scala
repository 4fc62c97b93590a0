package org.apache.spark.sql.dynastate.internals

import org.apache.spark.SparkException
import org.apache.spark.sql.errors.QueryExecutionErrors

/** Errors of state stores, which this Spark has. */
private[internals] object SparkErrors {
  def unexpectedVersion(version: Long): Throwable = QueryExecutionErrors.unexpectedStateStoreVersion(version)

  def failedToCommit(store: String, cause: Throwable): Throwable =
    QueryExecutionErrors.failedToCommitStateFileError(store, cause)

  def conditionOf(error: SparkException): String = error.getCondition
}
