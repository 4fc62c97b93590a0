package io.dynastate.tests

import java.nio.charset.StandardCharsets.UTF_8
import java.nio.file.{Files, Paths}
import java.nio.file.StandardOpenOption.{APPEND, CREATE}

import org.apache.spark.TaskContext
import org.apache.spark.sql.{ForeachWriter, Row}

/** Writes each row into a file of its partition as soon as it comes. */
final class AppendRows(folder: String) extends ForeachWriter[Row] {
  override def open(partitionId: Long, epochId: Long): Boolean = true

  override def process(row: Row): Unit = {
    val file = Paths.get(folder, TaskContext.getPartitionId().toString)
    Files.write(file, (row.mkString("\t") + "\n").getBytes(UTF_8), CREATE, APPEND)
  }

  override def close(error: Throwable): Unit = ()
}
