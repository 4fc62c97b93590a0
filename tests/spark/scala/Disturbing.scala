package io.dynastate.tests

import java.nio.file.{Files, Path}

import org.apache.spark.TaskContext

/**
 * Called from SQL (`reflect`) for every row that a stateful operator gives, in the task's own thread: what happens here happens
 * before the operator has seen all its rows, and so before its stores commit.
 */
object Disturbing {
  /** Let a partition wait; `told` then exists. */
  def hang(partition: Int, ms: Long, told: String): Boolean = {
    if (TaskContext.getPartitionId() == partition) {
      Files.writeString(Path.of(told), "")
      Thread.sleep(ms)
    }
    true
  }

  /** End this JVM by SIGKILL, once, when others have had some time to commit; `told` gets its process id. */
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
