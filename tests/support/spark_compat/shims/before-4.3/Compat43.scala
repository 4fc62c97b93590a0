package io.dynastate.compat

import org.apache.spark.sql.catalyst.expressions.UnsafeRow
import org.apache.spark.sql.execution.streaming.state._
import org.apache.spark.sql.types.StructType

trait Compat43 {
  def reusableIterator(store: StateStore, family: String): (Iterator[UnsafeRowPair], UnsafeRow => Unit) =
    throw new Absent("reusableIterator")

  /** This Spark's state reader makes the family in a store that it aborts. */
  implicit final class ReadStateStore43(store: ReadStateStore) {
    def registerColFamily(name: String, key: StructType, value: StructType, spec: KeyStateEncoderSpec): Unit =
      throw new Absent("registerColFamily")
  }

  /** Maintenance is of one kind, and one at a time. */
  implicit final class StateStoreProvider43(provider: StateStoreProvider) {
    def doSnapshotMaintenance(): Unit = provider.doMaintenance()

    def doCleanupMaintenance(): Unit = ()
  }
}
