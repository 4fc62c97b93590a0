package org.apache.spark.sql.dynastate

import org.apache.spark.SPARK_VERSION
import org.apache.spark.sql.AnalysisException
import org.apache.spark.sql.internal.SQLConf

/** The setting that lets queries with state be in real-time mode. */
private[dynastate] object RealTimeMode {
  val Setting = "spark.dynastate.realTimeMode.enabled"

  def isEnabled: Boolean = value == "true"

  /** The same for a query that starts, which any other value refuses. Not for other plans: by one, `SET` corrects it.
   */
  def isEnabledAtStart: Boolean = value match {
    case "true" | "false" => isEnabled
    case other =>
      throw RefusePinnedProvider.refused(s"spark.dynastate.realTimeMode.enabled must be true or false got='$other'")
  }

  private def value: String = SQLConf.get.getConfString(Setting, "false")

  def refused(tried: String): AnalysisException = RefusePinnedProvider.refused(
    s"spark.dynastate.realTimeMode.enabled is for Spark $tried, on which it was tried; leave it out, and set " +
      s"${RefusePinnedProvider.Setting}=${RefusePinnedProvider.Provider} version=$SPARK_VERSION")
}
