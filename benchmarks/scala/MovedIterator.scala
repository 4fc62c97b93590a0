package org.apache.spark.sql.dynastate.benchmarks

import org.apache.spark.sql.catalyst.expressions.UnsafeRow
import org.apache.spark.sql.execution.streaming.state._

/** An iterator over a column family that is moved, as `transformWithState` does it. Only code in `org.apache.spark.sql`
 * can name its type.
 */
final class MovedIterator(store: StateStore, family: String) {
  private[this] val iterator = store.asInstanceOf[SupportsReusableIterator].reusableIterator(family)

  def moveTo(prefix: UnsafeRow): Iterator[UnsafeRowPair] = {
    iterator.refreshAndSeekToPrefix(prefix)
    iterator
  }
}
