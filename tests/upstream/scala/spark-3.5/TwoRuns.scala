package org.apache.spark.sql.dynastate.upstream

import java.nio.file.{Files, Paths}

import org.apache.spark.sql.SparkSession
import org.apache.spark.sql.streaming.Trigger

/** Two runs of an aggregation, over a file that is there before each. Prints the version of Spark, the ids of the runs,
 * and the counts after the last. Spark's conf is in system properties.
 */
object TwoRuns {
  def main(arguments: Array[String]): Unit = {
    val Array(input, checkpoint) = arguments
    val spark = SparkSession.builder.getOrCreate()
    val runs = Seq("a\nb\n", "b\n").zipWithIndex.map { case (text, number) =>
      Files.write(Paths.get(input, s"$number.txt"), text.getBytes)
      val counts = spark.readStream.text(input).groupBy("value").count()
      val writer = counts.writeStream.format("memory").queryName("counts").outputMode("complete")
      val query = writer.option("checkpointLocation", checkpoint).trigger(Trigger.AvailableNow).start()
      query.awaitTermination()
      query.runId
    }
    val rows = spark.table("counts").collect().map(row => s"${row.getString(0)}=${row.getLong(1)}").sorted
    println((spark.version +: runs.map(_.toString) :+ rows.mkString(",")).mkString(" "))
    spark.stop()
  }
}
