package org.apache.spark.sql.dynastate.internals

import org.apache.spark.{QueryContext, SparkException}

/** Errors of state stores, which this Spark does not have: under the names that later ones give them. */
private[internals] object SparkErrors {
  def unexpectedVersion(version: Long): Throwable =
    error("UNEXPECTED_STATE_STORE_VERSION", s"the version of a state store cannot be $version", null)

  def failedToCommit(store: String, cause: Throwable): Throwable =
    error("CANNOT_WRITE_STATE_STORE.CANNOT_COMMIT", s"cannot commit $store", cause)

  def conditionOf(error: SparkException): String = error.getErrorClass

  private def error(condition: String, message: String, cause: Throwable): Throwable =
    new SparkException(s"[$condition] $message", cause, Some(condition), Map.empty[String, String],
      Array.empty[QueryContext])
}
