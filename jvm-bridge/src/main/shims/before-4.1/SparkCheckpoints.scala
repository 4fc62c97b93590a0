package io.dynastate.checkpoint

import org.apache.hadoop.conf.Configuration
import org.apache.hadoop.fs.Path

import org.apache.spark.sql.execution.streaming.CheckpointFileManager

/** Spark's classes of checkpoint files, where they are before 4.1. */
private[checkpoint] object SparkCheckpoints {
  type Manager = CheckpointFileManager
  type Output = CheckpointFileManager.CancellableFSDataOutputStream

  def managerOf(path: Path, hadoopConf: Configuration): Manager = CheckpointFileManager.create(path, hadoopConf)
}
