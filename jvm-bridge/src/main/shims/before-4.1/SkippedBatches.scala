package org.apache.spark.sql.dynastate

import org.apache.spark.sql.SparkSessionExtensions

/** With checkpoint format 1, which this Spark needs, it continues from the version that the batch has made before. */
private[dynastate] object SkippedBatches {
  def inject(extensions: SparkSessionExtensions): Unit = ()
}
