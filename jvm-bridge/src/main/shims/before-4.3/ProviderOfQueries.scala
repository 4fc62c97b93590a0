package org.apache.spark.sql.dynastate

import org.apache.spark.sql.SparkSessionExtensions
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan
import org.apache.spark.sql.catalyst.streaming.WriteToStream

/** Real-time mode of queries with state came with Spark 4.3. */
private[dynastate] object ProviderOfQueries {
  def inject(extensions: SparkSessionExtensions): Unit = extensions.injectCheckRule { _ =>
    {
      case _: WriteToStream => if (RealTimeMode.isEnabledAtStart) throw RealTimeMode.refused("4.3.0")
      case _: LogicalPlan =>
    }
  }
}
