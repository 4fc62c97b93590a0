package io.dynastate.memory

import java.util.concurrent.{ConcurrentHashMap, Executors}
import java.util.concurrent.locks.LockSupport

import io.dynastate.DaemonThreads

/** The thread of this process that evacuates pages of version trees after their folds, while their tasks wait for
 * DynamoDB. It has the lock of a tree for one page of each table at a time, about 0.2 ms each.
 */
private[memory] object Evacuator {
  /** What is left as garbage. With less, more rows have to move for each one that changes. */
  val GarbageShare: Double = 1.0 / 9

  /** Its rest after each page, in which tasks read and fold undisturbed, is this often the time of the page. */
  private val RestPerWork = 2L

  private val submitted = ConcurrentHashMap.newKeySet[VersionTree]()
  private val thread = Executors.newSingleThreadExecutor(new DaemonThreads("dynastate-evacuator"))

  def submit(tree: VersionTree): Unit = if (submitted.add(tree)) thread.execute { () =>
    submitted.remove(tree)
    var startNanos = System.nanoTime()
    while (tree.evacuate()) {
      LockSupport.parkNanos(RestPerWork * (System.nanoTime() - startNanos))
      startNanos = System.nanoTime()
    }
  }
}
