package io.dynastate.tests

import io.dynastate.compat._
import org.apache.spark.sql.execution.streaming.state.StateStore

/** A kind of writes to a store with lists, and its model: what a write makes of the values of a key. */
sealed trait Writes {
  def write(store: StateStore, id: Long, count: Long, note: String = ""): Unit

  def after(values: List[Long], count: Long): List[Long]
}

object Writes {
  import World._

  /** A value replaces those before it. */
  case object Puts extends Writes {
    override def write(store: StateStore, id: Long, count: Long, note: String): Unit =
      store.put(key(id), value(count, note), Family)
    override def after(values: List[Long], count: Long): List[Long] = List(count)
  }

  /** A value is appended to those before it. */
  case object Appends extends Writes {
    override def write(store: StateStore, id: Long, count: Long, note: String): Unit =
      store.merge(key(id), value(count, note), Family)
    override def after(values: List[Long], count: Long): List[Long] = values :+ count
  }
}
