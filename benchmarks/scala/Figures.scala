package io.dynastate.benchmarks

import java.util.{LinkedHashMap => JLinkedHashMap}

import com.fasterxml.jackson.databind.ObjectMapper

/** The figures of one process, in the order they were found. */
private[benchmarks] final class Figures {
  private val found = new JLinkedHashMap[String, Any]

  def update(name: String, value: Any): Unit = found.put(name, value)

  /** Print them as one JSON object on the last line of standard output, and end: a provider may have left threads that
   * are not daemons.
   */
  def printAndExit(): Unit = {
    println(new ObjectMapper().writeValueAsString(found))
    System.out.flush()
    System.exit(0)
  }
}

private[benchmarks] object Figures {

  def median(figures: Seq[Double]): Double = {
    val sorted = figures.sorted
    (sorted((sorted.length - 1) / 2) + sorted(sorted.length / 2)) / 2
  }

  /** By nearest rank: always an observed figure. */
  def percentile(figures: Seq[Double], share: Double): Double =
    figures.sorted.apply(math.max(0, math.ceil(share * figures.length).toInt - 1))

  def millis(nanos: Seq[Long]): Seq[Double] = nanos.map(_ / 1e6)
}
