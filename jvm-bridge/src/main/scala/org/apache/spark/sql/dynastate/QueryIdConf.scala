package org.apache.spark.sql.dynastate

import io.dynastate.spark.ProviderSettings.QueryId

import org.apache.spark.sql.SparkSessionExtensions
import org.apache.spark.util.UninterruptibleThread

/** Puts a query's id into the conf of its own session, where tasks find it whichever thread submits their job. As a
 * local property, Spark's own way, it is missing in threads that a program starts in foreachBatch, or is the id of the
 * query that started the thread.
 */
private[dynastate] object QueryIdConf {
  /** Spark analyses the plan of every batch, in the thread of the query and its session. */
  def inject(extensions: SparkSessionExtensions): Unit = extensions.injectCheckRule { session =>
    val runId = new RunIdConf(session)
    _ =>
      if (Thread.currentThread.isInstanceOf[UninterruptibleThread]) {
        runId.set()
        Option(session.sparkContext.getLocalProperty(QueryId))
          .foreach(session.sessionState.conf.setConfString(QueryId, _))
      }
  }
}
