package io.dynastate.tests

import java.nio.file.{Files, Path}

import org.apache.spark.TaskContext

/** Faults in a running task. Called from SQL (`reflect`) for every row that a stateful operator returns, in the task's
 * own thread: before the operator has seen all its rows, and so before its stores commit.
 */
object Disturbing {
  /** Let a partition wait; the file `told` then exists. */
  def hang(partition: Int, ms: Long, mark: String): Boolean = {
    if (TaskContext.getPartitionId() == partition) {
      Files.writeString(Path.of(mark), "")
      Thread.sleep(ms)
    }
    true
  }
}
