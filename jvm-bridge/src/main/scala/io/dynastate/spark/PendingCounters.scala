package io.dynastate.spark

/** Counters of work outside batches, by names of the protocol, kept until a commit reports them. Safe for threads. */
private[spark] final class PendingCounters {
  private[this] var counters = Map.empty[String, Long]

  def add(more: Map[String, Long]): Unit = synchronized { counters = PendingCounters.sum(counters, more) }

  def take(): Map[String, Long] = synchronized {
    val result = counters
    counters = Map.empty
    result
  }
}

private[spark] object PendingCounters {
  def sum(one: Map[String, Long], other: Map[String, Long]): Map[String, Long] =
    other.foldLeft(one) { case (all, (name, value)) => all + (name -> (all.getOrElse(name, 0L) + value)) }
}
