package org.apache.spark.sql.dynastate

import org.apache.spark.sql.SparkSession

/** This Spark gives tasks the id of their run itself. */
private[dynastate] final class RunIdConf(session: SparkSession) {
  def set(): Unit = ()
}
