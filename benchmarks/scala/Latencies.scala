package io.dynastate.benchmarks

import java.util.concurrent.ConcurrentHashMap

import org.apache.spark.sql.{ForeachWriter, Row}

/** A sink for the rows of `PacedRows`: how late they come after they were due, and when those of an interval come. */
final class Latencies extends ForeachWriter[Row] {
  private var interval: Interval = _

  override def open(partitionId: Long, epochId: Long): Boolean = {
    interval = Latencies.intervals.computeIfAbsent(epochId, _ => new Interval)
    true
  }

  override def process(row: Row): Unit = interval.add(row.getAs[Long]("due"))

  override def close(error: Throwable): Unit = ()
}

object Latencies {
  private[benchmarks] val intervals = new ConcurrentHashMap[Long, Interval]

  /** Forget what was measured: another query begins. */
  def forget(): Unit = intervals.clear()

  /** Of the intervals from one to another, as JSON: the latency of rows that did not wait at the source, at some
   * quantiles, and the times without rows between an interval and the next one, in milliseconds.
   */
  def figures(from: Long, to: Long): String = {
    val measured = (from to to).map(intervals.get(_))
    val latencies = measured.flatMap(_.steady).sorted
    val pauses = measured.sliding(2).map(pair => pair(1).firstNanos - pair(0).lastNanos).toSeq.sorted
    def at(values: Seq[Long], quantile: Double): Double =
      values(math.min(values.length - 1, (quantile * values.length).toInt)) / 1e6
    s"""{"p50_ms": ${at(latencies, 0.5)}, "p99_ms": ${at(latencies, 0.99)}, "p99.9_ms": ${at(latencies, 0.999)},
       |"pause_ms": ${at(pauses, 0.5)}, "pause_most_ms": ${pauses.last / 1e6},
       |"rows": ${measured.map(_.rows).sum}}""".stripMargin
  }
}

/** Rows of one interval, of all partitions. */
private[benchmarks] final class Interval {
  private var latencies = new Array[Long](1 << 16)
  private var count = 0
  var rows = 0L
  var firstNanos, lastNanos = 0L

  def add(due: Long): Unit = synchronized {
    lastNanos = System.nanoTime()
    if (rows == 0) firstNanos = lastNanos
    rows += 1
    if ((due & 1) == 1) {
      if (count == latencies.length) latencies = java.util.Arrays.copyOf(latencies, 2 * count)
      latencies(count) = lastNanos - due / 2
      count += 1
    }
  }

  def steady: Array[Long] = synchronized(latencies.take(count))
}
