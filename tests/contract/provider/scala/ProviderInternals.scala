package io.dynastate.spark

import java.util.concurrent.{ConcurrentLinkedQueue, ThreadPoolExecutor}

import io.dynastate.memory.Attempt
import org.apache.logging.log4j.{Level, LogManager}
import org.apache.logging.log4j.core.{Logger, LogEvent}
import org.apache.logging.log4j.core.appender.AbstractAppender
import org.apache.logging.log4j.core.config.Property

import org.apache.spark.sql.execution.streaming.state.StateStoreProvider

/** What only tests see of providers of ours. */
object ProviderInternals {
  /** Take a counter of what no commit has reported so far, by its name in the protocol; 0: nothing was counted. */
  def takeCounter(provider: StateStoreProvider, name: String): Long =
    provider.asInstanceOf[DynamoDBStateStoreProvider].read.take().getOrElse(name, 0L)

  /** Of each version in memory the attempt, and that of the same version where its rows are read from DynamoDB. */
  def attempts(provider: StateStoreProvider): Seq[(Attempt, Attempt)] =
    provider.asInstanceOf[DynamoDBStateStoreProvider].retained.all.map(each =>
      (each.attempt, each.versions.durable(each).attempt))

  /** Take the counters of snapshots and clean-up that no commit has reported so far. */
  def takeMaintained(provider: StateStoreProvider): Map[String, Long] =
    provider.asInstanceOf[DynamoDBStateStoreProvider].maintained.take()

  /** Take what providers of this process have logged of maintenance that failed; no caller sees it otherwise. */
  def takeFailures(): Seq[String] = Iterator.continually(failures.poll()).takeWhile(_ != null).toList

  private lazy val failures: ConcurrentLinkedQueue[String] = {
    val messages = new ConcurrentLinkedQueue[String]
    val appender = new AbstractAppender("failures", null, null, true, Property.EMPTY_ARRAY) {
      override def append(event: LogEvent): Unit = {
        val message = event.getMessage.getFormattedMessage
        if (event.getLevel == Level.WARN && message.contains("and will be tried again; no state is lost"))
          messages.add(message)
      }
    }
    appender.start()
    LogManager.getLogger("io.dynastate.Provider").asInstanceOf[Logger].addAppender(appender)
    messages
  }

  /** Whether any provider loads something in the background. */
  def isLoading: Boolean = VersionLoader.loaders.asInstanceOf[ThreadPoolExecutor].getActiveCount > 0

  /** Run with another number of rows from which on a version is loaded in the background. */
  def loadingBeside(rows: Long)(body: => Unit): Unit = {
    val previous = VersionLoader.backgroundRowsMin
    VersionLoader.backgroundRowsMin = rows
    try body
    finally VersionLoader.backgroundRowsMin = previous
  }
}
