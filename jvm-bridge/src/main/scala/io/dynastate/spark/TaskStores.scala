package io.dynastate.spark

import java.util.concurrent.{ConcurrentHashMap, ConcurrentLinkedQueue}

import io.dynastate.CollectionConverters._

import org.apache.spark.TaskContext

/** The stores that each task writes. Safe for threads. */
private[spark] object TaskStores {
  private[this] val byTask = new ConcurrentHashMap[TaskContext, ConcurrentLinkedQueue[DynamoDBStateStore]]

  /** Add a store of this thread's task. It is aborted when the task completes, unless it has committed: Spark aborts
   * stores of StateStoreRDD only; joins and others rely on the store itself.
   */
  def add(store: DynamoDBStateStore): Unit = Option(TaskContext.get()).foreach { task =>
    byTask.computeIfAbsent(task, _ => new ConcurrentLinkedQueue[DynamoDBStateStore]).add(store)
    task.addTaskCompletionListener[Unit] { _ =>
      byTask.remove(task)
      store.abort()
    }
  }

  /** The other stores of the same operator and partition that this thread's task writes: a stream-stream join has four.
   * Not those of another operator, which may change after this one has committed. None if one of them is open twice:
   * a task that computes a partition twice at the same time has two sets of stores, of which one may still change.
   */
  def besides(store: DynamoDBStateStore): Seq[DynamoDBStateStore] = {
    val stores = Option(TaskContext.get()).flatMap(task => Option(byTask.get(task))).map(_.asScala).getOrElse(Nil)
    val under = stores.filter(each => each.isUnderWay && each.id.copy(storeName = "") == store.id.copy(storeName = ""))
    val names = under.map(_.id.storeName).toSeq
    if (names.distinct.size < names.size) Nil else under.filter(_ ne store).toSeq
  }
}
