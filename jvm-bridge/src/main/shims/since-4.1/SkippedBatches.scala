package org.apache.spark.sql.dynastate

import java.util.{Map => JMap}

import scala.jdk.CollectionConverters._

import org.slf4j.LoggerFactory

import org.apache.spark.rdd.RDD
import org.apache.spark.sql.{DataFrame, SparkSessionExtensions}
import org.apache.spark.sql.catalyst.InternalRow
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan
import org.apache.spark.sql.catalyst.rules.Rule
import org.apache.spark.sql.catalyst.streaming.WriteToStream
import org.apache.spark.sql.classic.Dataset
import org.apache.spark.sql.connector.read.streaming.ReportsSinkMetrics
import org.apache.spark.sql.execution.streaming.Sink
import org.apache.spark.sql.execution.streaming.operators.stateful.{StatefulOperatorStateInfo, StateStoreWriter}
import org.apache.spark.sql.execution.streaming.sources.ForeachBatchSink
import org.apache.spark.sql.internal.SQLConf

/** Computes the state of batches that a sink skips (docs/decisions/0045-batches-that-a-sink-skips.md).
 *
 * A sink that writes each batch once, such as Spark's file sink and Delta's, skips a batch that it has. That happens
 * when the driver died after the sink had the batch, and before the commit log had it. With checkpoint format 2 Spark
 * then has no version of any partition, and fails, also at each later start.
 */
private[dynastate] object SkippedBatches {
  def inject(extensions: SparkSessionExtensions): Unit = extensions.injectPostHocResolutionRule(_ => WrapSink)

  private object WrapSink extends Rule[LogicalPlan] {
    override def apply(plan: LogicalPlan): LogicalPlan = plan match {
      case write: WriteToStream => write.sink match {
          // A function of foreachBatch that uses less than all rows may have hidden a failure: Spark reports it.
          case _: CompletingSink | _: ForeachBatchSink[_] => write
          case sink: Sink if needsVersionIds(SQLConf.get) && RefusePinnedProvider.isStatefulOnDynastate(write) =>
            write.copy(sink = sink match {
              case reporting: Sink with ReportsSinkMetrics => new ReportingSink(reporting)
              case other => new CompletingSink(other)
            })
          case _ => write // a newer kind of sink, for which Spark always computes the batch
        }
      case other => other
    }
  }

  def needsVersionIds(conf: SQLConf): Boolean = StatefulOperatorStateInfo.enableStateStoreCheckpointIds(conf)
}

private final class ReportingSink(sink: Sink with ReportsSinkMetrics) extends CompletingSink(sink)
  with ReportsSinkMetrics {
  override def metrics(): JMap[String, String] = sink.metrics()
}

private class CompletingSink(sink: Sink) extends Sink {
  private val log = LoggerFactory.getLogger("io.dynastate.Sink")

  override def addBatch(batchId: Long, data: DataFrame): Unit = {
    sink.addBatch(batchId, data)
    val query = data.asInstanceOf[Dataset[_]].queryExecution
    val operators = query.executedPlan.collect { case operator: StateStoreWriter => operator }
    if (SkippedBatches.needsVersionIds(query.sparkSession.sessionState.conf)) {
      if (operators.nonEmpty && operators.forall(computed(_).isEmpty)) {
        log.warn(s"the sink has skipped batch $batchId, which is computed for its state sink=$sink")
        compute(query.toRdd, query.toRdd.partitions.indices)
      }
      // A join may leave partitions of one side unread. The operators that others read are the last ones.
      operators.reverse.foreach { operator =>
        val missing = (0 until operator.outputPartitioning.numPartitions).filterNot(computed(operator))
        if (missing.nonEmpty) {
          log.info(s"partitions that batch $batchId has not read are computed operator=${operator.nodeName}")
          compute(operator.execute(), missing)
        }
      }
    }
  }

  private def compute(rows: RDD[InternalRow], partitions: Seq[Int]): Unit =
    rows.sparkContext.runJob(rows, (partition: Iterator[InternalRow]) => partition.foreach(_ => ()), partitions)

  /** The partitions of which Spark has a version. */
  private def computed(operator: StateStoreWriter): Set[Int] =
    operator.checkpointInfoAccumulator.value.asScala.map(_.partitionId).toSet

  /** Spark shows it as the description of the sink. */
  override def toString: String = sink.toString
}
