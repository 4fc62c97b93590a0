package org.apache.spark.sql.dynastate

import org.apache.spark.sql.SparkSessionExtensions

/** Refuses queries that would not run on dynastate although the session says so: `RefusePinnedProvider`. Tells tasks
 * the id of their query: `QueryIdConf`. Refuses the setting for real-time mode: `ProviderOfQueries`. Computes the state
 * of batches that sinks skip: `SkippedBatches`. Set by `spark.sql.extensions`; `dynastate.configure` does so.
 * This Spark runs transformWithState on any provider.
 */
class DynastateExtensions extends (SparkSessionExtensions => Unit) {
  override def apply(extensions: SparkSessionExtensions): Unit = {
    ProviderOfQueries.inject(extensions)
    RefusePinnedProvider.inject(extensions)
    QueryIdConf.inject(extensions)
    SkippedBatches.inject(extensions)
  }
}
