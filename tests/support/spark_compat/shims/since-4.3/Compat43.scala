package io.dynastate.compat {
  import org.apache.spark.sql.catalyst.expressions.UnsafeRow
  import org.apache.spark.sql.dynastate.ReusableIterators
  import org.apache.spark.sql.execution.streaming.state._

  trait Compat43 {
    /** An iterator, and what moves it to a prefix. */
    def reusableIterator(store: StateStore, family: String): (Iterator[UnsafeRowPair], UnsafeRow => Unit) =
      ReusableIterators.of(store, family)
  }
}

package org.apache.spark.sql.dynastate {
  import org.apache.spark.sql.catalyst.expressions.UnsafeRow
  import org.apache.spark.sql.execution.streaming.state._

  /** What only code in `org.apache.spark.sql` can reach. */
  object ReusableIterators {
    def of(store: StateStore, family: String): (Iterator[UnsafeRowPair], UnsafeRow => Unit) = {
      val iterator = store.asInstanceOf[SupportsReusableIterator].reusableIterator(family)
      (iterator, iterator.refreshAndSeekToPrefix)
    }
  }
}
