package org.apache.spark.sql.dynastate.internals

import org.apache.spark.SparkException

/** Errors of state stores, which this Spark does not have: as its own providers raise them. */
private[internals] object SparkErrors {
  def unexpectedVersion(version: Long): Throwable =
    new IllegalArgumentException(s"requirement failed: Version cannot be less than 0: $version")

  def failedToCommit(store: String, cause: Throwable): Throwable =
    new IllegalStateException(s"Error committing $store", cause)

  def conditionOf(error: SparkException): String = error.getErrorClass
}
