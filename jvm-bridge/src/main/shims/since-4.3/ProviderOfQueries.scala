package org.apache.spark.sql.dynastate

import java.util.UUID

import scala.util.Try

import io.dynastate.spark.ProviderSettings.QueryId

import org.apache.spark.SPARK_VERSION
import org.apache.spark.sql.{SparkSession, SparkSessionExtensions}
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan
import org.apache.spark.sql.catalyst.streaming.WriteToStream
import org.apache.spark.sql.streaming.StreamingQueryListener
import org.apache.spark.sql.streaming.StreamingQueryListener._
import org.apache.spark.util.UninterruptibleThread

/** Sets dynastate's class in the own session of each query when it starts, where the session that starts it sets none.
 * So a query can be in real-time mode, which Spark refuses in a session that sets another class than RocksDB's
 * (docs/decisions/0043-real-time-mode.md).
 */
private[dynastate] object ProviderOfQueries {
  /** In the code of other versions a query may get RocksDB's class before its listeners are called. */
  private val Tried = Set("4.3.0")

  def inject(extensions: SparkSessionExtensions): Unit = extensions.injectCheckRule { session =>
    {
      case _: WriteToStream => if (RealTimeMode.isEnabledAtStart) {
          if (!Tried(SPARK_VERSION)) throw RealTimeMode.refused(Tried.mkString(", "))
          // A program may have removed it.
          if (!session.streams.listListeners().exists(_.isInstanceOf[SetProvider]))
            session.streams.addListener(new SetProvider(session))
        }
      case plan: LogicalPlan => if (RealTimeMode.isEnabled && isForQuery(session)) RefusePinnedProvider.checkOwn(plan)
    }
  }

  /** Whether this is the own session of a query that this thread runs. */
  private def isForQuery(session: SparkSession): Boolean = Thread.currentThread.isInstanceOf[UninterruptibleThread] &&
    Try(UUID.fromString(session.sparkContext.getLocalProperty(QueryId))).toOption
      .flatMap(id => Option(session.sharedState.activeStreamingQueries.get(id)))
      .exists(_.sparkSessionForStream eq session)

  /** Spark calls it in the thread of the query, before its own session gets RocksDB's class by default, and before
   * `start()` returns. Later the conf of the session that started it may be another.
   */
  private final class SetProvider(session: SparkSession) extends StreamingQueryListener {
    override def onQueryStarted(event: QueryStartedEvent): Unit =
      Option(session.sharedState.activeStreamingQueries.get(event.id)).foreach { query =>
        val own = query.sparkSessionForStream.conf
        if (own.get(RealTimeMode.Setting, "false") == "true") {
          // The user has chosen a class for this query, and no batch of it is to be refused.
          if (query.sparkSession.conf.contains(RefusePinnedProvider.Setting)) own.set(RealTimeMode.Setting, "false")
          else if (!own.contains(RefusePinnedProvider.Setting))
            own.set(RefusePinnedProvider.Setting, RefusePinnedProvider.Provider)
        }
      }

    override def onQueryProgress(event: QueryProgressEvent): Unit = ()

    override def onQueryTerminated(event: QueryTerminatedEvent): Unit = ()
  }
}
