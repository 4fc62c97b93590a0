package io.dynastate.benchmarks

import java.util.BitSet

import org.apache.commons.math3.distribution.ZipfDistribution
import org.apache.commons.math3.random.Well19937c

/** Draws rows by Zipf's law: the row of rank k comes up in proportion to 1 / k^1.1. The ranks are scattered over the
 * row numbers, so that popular rows were not loaded together.
 */
private[benchmarks] final class ZipfRows(rows: Int, seed: Long) {
  private val Exponent = 1.1
  /** A prime above every number of rows, so each rank has a row of its own. */
  private val Stride = 2654435761L
  private val ranks = new ZipfDistribution(new Well19937c(seed), rows, Exponent)

  /** Distinct rows, in the order in which they came up. */
  def draw(size: Int): Array[Int] = {
    val seen = new BitSet(rows)
    Iterator.continually(draw()).filter(row => !seen.get(row) && { seen.set(row); true }).take(size).toArray
  }

  private def draw(): Int = (ranks.sample() * Stride % rows).toInt
}
