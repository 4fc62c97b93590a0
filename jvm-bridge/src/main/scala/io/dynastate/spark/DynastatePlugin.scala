package io.dynastate.spark

import java.util.{Map => JMap}

import scala.util.control.NonFatal

import com.codahale.metrics.Gauge
import io.dynastate.DaemonThreads
import io.dynastate.bridge.{CheckpointCosts, Sidecar}
import org.slf4j.LoggerFactory

import org.apache.spark.{SparkConf, SparkContext}
import org.apache.spark.api.plugin.{DriverPlugin, ExecutorPlugin, PluginContext, SparkPlugin}

/** Starts the sidecar, or all of several, with the executor, in the background, so that the first task does not wait
 * for it; without the plugin that task starts it. It is the one that tasks use, unless their session has another
 * interpreter. Only where the application's conf selects dynastate: what a session selects later is not known here. Set
 * by `spark.plugins`; `dynastate.configure` does so.
 */
final class DynastatePlugin extends SparkPlugin {
  /** A driver needs a sidecar where checkpoints are in DynamoDB. */
  override def driverPlugin(): DriverPlugin = new DriverPlugin {
    override def init(context: SparkContext, pluginContext: PluginContext): JMap[String, String] = {
      if (context.getConf.contains(DynastatePlugin.FileSystem))
        DynastatePlugin.startSidecar(context.getConf, isDriver = true)
      JMap.of()
    }

    /** What the checkpoints in DynamoDB have cost, in Spark's metrics of the driver. */
    override def registerMetrics(appId: String, context: PluginContext): Unit =
      DynastatePlugin.CheckpointCounters.foreach { counter =>
        val gauge: Gauge[Long] = () => CheckpointCosts.of(counter)
        context.metricRegistry.register(s"checkpoint.$counter", gauge)
      }
  }

  override def executorPlugin(): ExecutorPlugin = new ExecutorPlugin {
    override def init(context: PluginContext, extraConf: JMap[String, String]): Unit =
      DynastatePlugin.startSidecar(context.conf)
  }
}

object DynastatePlugin {
  private val log = LoggerFactory.getLogger("io.dynastate.Sidecar")
  /** Not by SQLConf, whose hundreds of entries this would make before the executor is up. */
  private val ProviderClass = "spark.sql.streaming.stateStore.providerClass"
  /** Where it is set, each query gets the class of dynastate when it starts. */
  private val RealTimeMode = "spark.dynastate.realTimeMode.enabled"

  private val CheckpointCounters =
    Seq("requests", "retries", "throttles", "writeUnits", "deleteUnits", "readUnits", "nanodollars")

  private val FileSystem = s"spark.hadoop.fs.${ProviderSettings.CheckpointScheme}.impl"

  /** Start the sidecar in a thread, which is returned, or None if the conf selects another store. */
  def startSidecar(conf: SparkConf, isDriver: Boolean = false): Option[Thread] =
    if (!isChosen(conf)) None
    else {
      val thread = new DaemonThreads("dynastate-sidecar-start").newThread(() => prepare(conf, isDriver))
      thread.start()
      Some(thread)
    }

  private def isChosen(conf: SparkConf): Boolean =
    conf.getOption(ProviderClass).map(_ == "io.dynastate.spark.DynamoDBStateStoreProvider")
      .getOrElse(conf.get(RealTimeMode, "false") == "true")

  /** Lease a connection, for which the sidecar makes its client, and leave it to the first task. An error that left
   * this thread would end the executor.
   */
  private def prepare(conf: SparkConf, isDriver: Boolean): Unit =
    try {
      val (ofExecutor, engine, sidecars) = ProviderSettings.ofExecutor(conf)
      val python = if (isDriver) ProviderSettings.pythonOfDriver(conf).getOrElse(ofExecutor) else ofExecutor
      (0 until (if (isDriver) 1 else sidecars)).foreach(Sidecar.forPython(python, _).lease(engine).release())
    } catch {
      case e @ (NonFatal(_) | _: LinkageError) =>
        log.warn("sidecar was not made ready with the driver or executor; who first needs it tries again: " +
          e.getMessage)
    }
}
