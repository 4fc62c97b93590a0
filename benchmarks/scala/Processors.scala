package io.dynastate.benchmarks

import java.time.Duration

import org.apache.spark.sql.{DataFrame, Encoder, Encoders}
import org.apache.spark.sql.streaming._

/** Queries in Scala, for sessions of PySpark. */
object Processors {
  private type Event = (String, Long, String)
  private type Told = (String, String, Long, Long)
  private type Total = (Long, Long, String)

  private implicit val textEncoder: Encoder[String] = Encoders.STRING
  private implicit val eventEncoder: Encoder[Event] =
    Encoders.tuple(Encoders.STRING, Encoders.scalaLong, Encoders.STRING)
  private implicit val toldEncoder: Encoder[Told] =
    Encoders.tuple(Encoders.STRING, Encoders.STRING, Encoders.scalaLong, Encoders.scalaLong)
  private val totalEncoder: Encoder[Total] = Encoders.tuple(Encoders.scalaLong, Encoders.scalaLong, Encoders.STRING)

  /** The same as `timers_and_ttl` of queries_beyond_memory.py. */
  def timersAndTtl(rows: DataFrame): DataFrame =
    rows
      .select("key", "amount", "note")
      .as[Event]
      .groupByKey(_._1)
      .transformWithState(new Totals, TimeMode.ProcessingTime(), OutputMode.Append())
      .toDF("key", "what", "rows", "amount")

  private final class Totals extends StatefulProcessor[String, Event, Told] {
    private val HourMs = 3600000L
    @transient private var total: ValueState[Total] = _
    @transient private var last: ValueState[Long] = _

    override def init(outputMode: OutputMode, timeMode: TimeMode): Unit = {
      total = getHandle.getValueState("total", totalEncoder, TTLConfig(Duration.ofHours(1)))
      last = getHandle.getValueState("last", Encoders.scalaLong, TTLConfig(Duration.ofMillis(1)))
    }

    override def handleInputRows(key: String, rows: Iterator[Event], timers: TimerValues): Iterator[Told] = {
      val taken = rows.toSeq
      val (count, sum, note) = if (total.exists()) total.get() else (0L, 0L, "")
      val now = (count + taken.length, sum + taken.map(_._2).sum, (note +: taken.map(_._3)).max)
      total.update(now)
      val expired = !last.exists()
      last.update(taken.length)
      getHandle.listTimers().toSeq.foreach(getHandle.deleteTimer)
      getHandle.registerTimer(timers.getCurrentProcessingTimeInMs() + 1)
      getHandle.registerTimer(timers.getCurrentProcessingTimeInMs() + HourMs)
      Iterator((key, if (expired) "seen" else "seen again", now._1, now._2))
    }

    override def handleExpiredTimer(key: String, timers: TimerValues, expired: ExpiredTimerInfo): Iterator[Told] =
      Iterator((key, "due", if (total.exists()) total.get()._1 else -1L, 0L))
  }
}
