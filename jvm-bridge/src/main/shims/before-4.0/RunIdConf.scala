package org.apache.spark.sql.dynastate

import io.dynastate.spark.ProviderSettings.RunId

import org.apache.spark.sql.SparkSession

/** Puts the id of a query's run into the conf of its own session, where tasks find it, as later Sparks do themselves.
 * This Spark has it in the name of the query's thread. It is also the group of its jobs, which foreachBatch may change.
 */
private[dynastate] final class RunIdConf(session: SparkSession) {
  import RunIdConf.ThreadName

  /** The first run whose thread used the session: of a query's own session its only one. */
  @volatile private[this] var runId: Option[String] = None

  def set(): Unit = {
    if (runId.isEmpty) runId = Some(Thread.currentThread.getName).collect { case ThreadName(id) => id }
    // A session that is made from a query's begins with the id of that query's run.
    runId.fold(session.sessionState.conf.unsetConf(RunId))(session.sessionState.conf.setConfString(RunId, _))
  }
}

private object RunIdConf {
  /** A query's name is the user's, and may look like this, too: the ids are last. */
  private val ThreadName = "(?s)stream execution thread for .*\\[id = [0-9a-f-]{36}, runId = ([0-9a-f-]{36})\\]".r
}
