package io.dynastate.tests

import java.sql.Timestamp

import org.apache.spark.sql.{DataFrame, Dataset, Encoder, Encoders, Row}
import org.apache.spark.sql.streaming.{GroupState, GroupStateTimeout, OutputMode}

/** Queries with flatMapGroupsWithState, which PySpark cannot make. */
object GroupStates {
  private val IdleMs = 15000L
  private val RowsMost = 40

  private implicit val textEncoder: Encoder[String] = Encoders.STRING
  private implicit val eventEncoder: Encoder[(String, Long, Timestamp)] =
    Encoders.tuple(Encoders.STRING, Encoders.scalaLong, Encoders.TIMESTAMP)
  private implicit val stateEncoder: Encoder[(Long, Long)] = Encoders.tuple(Encoders.scalaLong, Encoders.scalaLong)
  private implicit val outEncoder: Encoder[(String, String, Long, Long)] =
    Encoders.tuple(Encoders.STRING, Encoders.STRING, Encoders.scalaLong, Encoders.scalaLong)

  /** Count and sum by key; the state of a key is removed after many rows, and at its time-out. Takes a frame with key,
   * amount and at.
   */
  def counts(rows: DataFrame): DataFrame = {
    val events: Dataset[(String, Long, Timestamp)] = rows
      .selectExpr("coalesce(key, 'none')", "coalesce(amount, 0)", "at").withWatermark("at", "5 seconds")
      .as[(String, Long, Timestamp)]
    events.groupByKey(_._1).flatMapGroupsWithState[(Long, Long), (String, String, Long, Long)](
      OutputMode.Append, GroupStateTimeout.EventTimeTimeout)(update).toDF("key", "what", "rows", "amount")
  }

  private def update(key: String, events: Iterator[(String, Long, Timestamp)],
      state: GroupState[(Long, Long)]): Iterator[(String, String, Long, Long)] =
    if (state.hasTimedOut) {
      val (rows, amount) = state.get
      state.remove()
      Iterator((key, "timed out", rows, amount))
    } else {
      val (rowsBefore, amountBefore) = state.getOption.getOrElse((0L, 0L))
      val list = events.toSeq
      val rows = rowsBefore + list.size
      val amount = amountBefore + list.map(_._2).sum
      if (rows > RowsMost) {
        state.remove()
        Iterator((key, "full", rows, amount))
      } else {
        state.update((rows, amount))
        state.setTimeoutTimestamp(math.max(state.getCurrentWatermarkMs(), list.map(_._3.getTime).max) + IdleMs)
        Iterator((key, "counted", rows, amount))
      }
    }

}
