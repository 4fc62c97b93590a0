package io.dynastate.tests

import java.util.{Collections, Map => JMap}

import org.apache.spark.sql.{DataFrame, SQLContext}
import org.apache.spark.sql.classic.Dataset
import org.apache.spark.sql.connector.read.streaming.ReportsSinkMetrics
import org.apache.spark.sql.execution.streaming.Sink
import org.apache.spark.sql.sources.StreamSinkProvider
import org.apache.spark.sql.streaming.OutputMode

/** A sink of Spark's older kind that counts rows and reports the number. Its class is its format. */
class CountingSink extends StreamSinkProvider {
  override def createSink(context: SQLContext, parameters: Map[String, String], partitionColumns: Seq[String],
      mode: OutputMode): Sink = new Sink with ReportsSinkMetrics {
    private[this] var rows = 0L

    override def addBatch(batchId: Long, data: DataFrame): Unit =
      rows += data.asInstanceOf[Dataset[_]].queryExecution.toRdd.count()

    override def metrics(): JMap[String, String] = Collections.singletonMap("rows", rows.toString)

    override def toString: String = "CountingSink"
  }
}
