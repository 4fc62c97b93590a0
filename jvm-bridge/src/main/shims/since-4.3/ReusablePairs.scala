package org.apache.spark.sql.dynastate.internals

import org.apache.spark.sql.catalyst.expressions.UnsafeRow
import org.apache.spark.sql.execution.streaming.state._

/** An iterator that `transformWithState` moves to the first timer or row that may have expired. */
trait ReusablePairs extends SupportsReusableIterator {
  /** One iterator over a family, to be moved: each call gives all pairs as of then, and ends those of the call before.
   * They are from the first key that has a prefix or is after it; null: from the first.
   */
  def movedPairs(colFamilyName: String): UnsafeRow => StateStoreIterator[UnsafeRowPair]

  override def reusableIterator(colFamilyName: String): ReusableIterator[UnsafeRowPair] =
    new ReusableIterator[UnsafeRowPair] {
      private[this] val pairsFrom = movedPairs(colFamilyName)
      private[this] var pairs = pairsFrom(null)

      /** Go there, and show what was changed before. */
      override def refreshAndSeekToPrefix(prefixKey: UnsafeRow): Unit = pairs = pairsFrom(prefixKey)

      override def hasNext: Boolean = pairs.hasNext

      override def next(): UnsafeRowPair = pairs.next()

      override def close(): Unit = pairs.close()
    }
}
