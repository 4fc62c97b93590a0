package org.apache.spark.sql.dynastate.tests

import org.apache.spark.{TaskContext, TaskContextImpl}

/** A task without a scheduler. */
object TestTask {
  /** Do something as a task that completes with the end of it. */
  def run[A](body: => A): A = {
    val task: TaskContextImpl = TaskContext.empty()
    TaskContext.setTaskContext(task)
    try body
    finally {
      task.markTaskCompleted(None)
      TaskContext.unset()
    }
  }
}
