package io.dynastate.spark

import java.util.concurrent.ThreadPoolExecutor

import org.apache.spark.sql.execution.streaming.state.StateStoreProvider

/** What only tests see of providers of ours. */
object ProviderInternals {
  /** Take a counter of what no commit has reported so far, by its name in the protocol; 0: nothing was counted. */
  def takeCounter(provider: StateStoreProvider, name: String): Long =
    provider.asInstanceOf[DynamoDBStateStoreProvider].read.take().getOrElse(name, 0L)

  /** Whether any provider loads something in the background. */
  def isLoading: Boolean = VersionLoader.loaders.asInstanceOf[ThreadPoolExecutor].getActiveCount > 0

  /** Run with another number of rows from which on a version is loaded in the background. */
  def loadingBeside(rows: Long)(body: => Unit): Unit = {
    val before = VersionLoader.backgroundRowsMin
    VersionLoader.backgroundRowsMin = rows
    try body finally VersionLoader.backgroundRowsMin = before
  }
}
