package io.dynastate.tests

import java.nio.file.{Files, Path}

import org.apache.spark.TaskContext

/**
 * Faults in a running task. Called from SQL (`reflect`) for every row that a stateful operator returns, in the task's own thread: before
 * the operator has seen all its rows, and so before its stores commit.
 */
object Disturbing {
  /** Let a partition wait; the file `told` then exists. */
  def hang(partition: Int, ms: Long, told: String): Boolean = {
    if (TaskContext.getPartitionId() == partition) {
      Files.writeString(Path.of(told), "")
      Thread.sleep(ms)
    }
    true
  }

  /** Kill this JVM (SIGKILL), once, after others had time to commit; the file `told` gets its process id. */
  def killOnce(partition: Int, ms: Long, told: String): Boolean = {
    if (TaskContext.getPartitionId() == partition && !Files.exists(Path.of(told))) {
      val own = ProcessHandle.current().pid.toString
      Files.writeString(Path.of(told), own)
      Thread.sleep(ms)
      new ProcessBuilder("kill", "-KILL", own).start()
      Thread.sleep(Long.MaxValue)
    }
    true
  }
}
