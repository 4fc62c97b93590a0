package org.apache.spark.sql.dynastate

import scala.jdk.CollectionConverters._

import org.slf4j.LoggerFactory

import org.apache.spark.sql.{DataFrame, SparkSessionExtensions}
import org.apache.spark.sql.catalyst.InternalRow
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan
import org.apache.spark.sql.catalyst.rules.Rule
import org.apache.spark.sql.catalyst.streaming.WriteToStream
import org.apache.spark.sql.classic.Dataset
import org.apache.spark.sql.execution.streaming.Sink
import org.apache.spark.sql.execution.streaming.operators.stateful.{StatefulOperatorStateInfo, StateStoreWriter}
import org.apache.spark.sql.execution.streaming.sources.ForeachBatchSink
import org.apache.spark.sql.internal.SQLConf

/** Computes the state of batches that a sink skips.
 *
 * A sink that writes each batch once, such as Spark's file sink and Delta's, skips a batch that it has. That happens
 * when the driver died after the sink had the batch, and before the commit log had it. A `foreachBatch` function may
 * skip one, too, or read a part of it. With checkpoint format 2 Spark then has no version of the partitions that were
 * not computed, and fails, also at each later start.
 */
private[dynastate] object SkippedBatches {
  private val log = LoggerFactory.getLogger("io.dynastate.Sink")

  def inject(extensions: SparkSessionExtensions): Unit = extensions.injectPostHocResolutionRule(_ => WrapSink)

  private object WrapSink extends Rule[LogicalPlan] {
    override def apply(plan: LogicalPlan): LogicalPlan = plan match {
      case write: WriteToStream => write.sink match {
          case _: Completing => write
          case sink: Sink if needsVersionIds(SQLConf.get) && RefusePinnedProvider.isStatefulOnDynastate(write) =>
            write.copy(sink = completing(sink))
          case _ => write // a newer kind of sink, for which Spark always computes the batch
        }
      case other => other
    }
  }

  private def needsVersionIds(conf: SQLConf): Boolean = StatefulOperatorStateInfo.enableStateStoreCheckpointIds(conf)

  /** Spark asks for the class of `foreachBatch`: it checks then that each partition has committed. */
  private def completing(inner: Sink): Sink = inner match {
    case _: ForeachBatchSink[_] => new ForeachBatchSink[Any](null, null) with Completing {
        override protected val sink: Sink = inner
      }
    case _ => new Completing {
        override protected val sink: Sink = inner
      }
  }

  private trait Completing extends Sink {
    protected val sink: Sink

    override def addBatch(batchId: Long, data: DataFrame): Unit = {
      sink.addBatch(batchId, data)
      val query = data.asInstanceOf[Dataset[_]].queryExecution
      val operators = query.executedPlan.collect { case operator: StateStoreWriter => operator }
      if (needsVersionIds(query.sparkSession.sessionState.conf) && !operators.forall(isComputed)) {
        log.info(s"the sink has not used all rows of batch $batchId: the batch is computed for its state sink=$sink")
        query.toRdd.foreach((_: InternalRow) => ())
      }
    }

    /** Whether Spark has a version of each partition, by the same condition as Spark's. */
    private def isComputed(operator: StateStoreWriter): Boolean = {
      val partitions = operator.checkpointInfoAccumulator.value.asScala.map(_.partitionId).toSet.size
      operator.stateInfo.exists(_.numPartitions == partitions) ||
      (operator.outputPartitioning.numPartitions == 1 && partitions == 1)
    }

    /** Spark shows it as the description of the sink. */
    override def toString: String = sink.toString
  }
}
