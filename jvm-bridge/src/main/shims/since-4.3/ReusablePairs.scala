package org.apache.spark.sql.dynastate.internals

import org.apache.spark.sql.catalyst.expressions.UnsafeRow
import org.apache.spark.sql.execution.streaming.state._

/** An iterator that `transformWithState` moves to the first timer or row that may have expired. */
trait ReusablePairs extends SupportsReusableIterator {
  /** All pairs as of now, from the first key that has a prefix or is after it; null: from the first. */
  def pairsFrom(prefixKey: UnsafeRow, colFamilyName: String): StateStoreIterator[UnsafeRowPair]

  override def reusableIterator(colFamilyName: String): ReusableIterator[UnsafeRowPair] =
    new ReusableIterator[UnsafeRowPair] {
      private[this] var pairs = pairsFrom(null, colFamilyName)

      /** Go there, and show what was changed before. */
      override def refreshAndSeekToPrefix(prefixKey: UnsafeRow): Unit = {
        pairs.close()
        pairs = pairsFrom(prefixKey, colFamilyName)
      }

      override def hasNext: Boolean = pairs.hasNext

      override def next(): UnsafeRowPair = pairs.next()

      override def close(): Unit = pairs.close()
    }
}
