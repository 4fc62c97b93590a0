package io.dynastate.bridge

import java.util.concurrent.ConcurrentHashMap
import java.util.concurrent.atomic.LongAdder

/** What this process has spent on files of checkpoints in DynamoDB, by the names of the sidecar's counters. */
object CheckpointCosts {
  private val counts = new ConcurrentHashMap[String, LongAdder]

  private[bridge] def add(counters: Map[String, Long]): Unit = counters.foreach { case (name, count) =>
    counts.computeIfAbsent(name, _ => new LongAdder).add(count)
  }

  def of(counter: String): Long = Option(counts.get(counter)).fold(0L)(_.sum)
}
