package org.apache.spark.sql.dynastate

import java.util.concurrent.atomic.AtomicBoolean

import io.dynastate.spark.ProviderSettings.QueryId

import org.apache.spark.sql.SparkSessionExtensions
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan
import org.apache.spark.sql.catalyst.streaming.WriteToStream
import org.apache.spark.util.UninterruptibleThread

/** Puts a query's id into the conf of its own session, where tasks find it whichever thread submits their job. As a
 * local property, Spark's own way, it is missing in threads that a program starts in foreachBatch, or is the id of the
 * query that started the thread.
 */
private[dynastate] object QueryIdConf {
  /** Spark analyses the plan of every batch, in the thread of the query and its own session. In that thread a file
   * source analyses plans, too, in the session that has started the query. Such a session gets no id: it may read the
   * state of other queries.
   */
  def inject(extensions: SparkSessionExtensions): Unit = extensions.injectCheckRule { session =>
    val runId = new RunIdConf(session)
    val hasStarted = new AtomicBoolean

    {
      case _: WriteToStream => hasStarted.set(true)
      case _: LogicalPlan => if (Thread.currentThread.isInstanceOf[UninterruptibleThread] && !hasStarted.get) {
          runId.set()
          Option(session.sparkContext.getLocalProperty(QueryId))
            .foreach(session.sessionState.conf.setConfString(QueryId, _))
        }
    }
  }
}
