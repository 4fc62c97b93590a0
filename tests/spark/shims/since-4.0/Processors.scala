package io.dynastate.tests

import java.sql.Timestamp
import java.time.Duration

import org.apache.spark.sql.{DataFrame, Encoder, Encoders}
import org.apache.spark.sql.streaming._

/** Queries with transformWithState in Scala. Each takes a frame with key, amount and at. */
object Processors {
  type Event = (String, Long, Timestamp)
  type Told = (String, String, Long, String)
  type Note = (String, Long, String)

  private implicit val textEncoder: Encoder[String] = Encoders.STRING
  private implicit val eventEncoder: Encoder[Event] =
    Encoders.tuple(Encoders.STRING, Encoders.scalaLong, Encoders.TIMESTAMP)
  private implicit val toldEncoder: Encoder[Told] =
    Encoders.tuple(Encoders.STRING, Encoders.STRING, Encoders.scalaLong, Encoders.STRING)

  private implicit val noteEncoder: Encoder[Note] = Encoders.tuple(Encoders.STRING, Encoders.scalaLong, Encoders.STRING)
  private implicit val countEncoder: Encoder[(String, Long)] = Encoders.tuple(Encoders.STRING, Encoders.scalaLong)

  private val Columns = Seq("key", "what", "rows", "amounts")

  /** Value, list and map; a timer in event time closes a key that was idle. */
  def byEventTime(rows: DataFrame): DataFrame =
    events(rows.withWatermark("at", "5 seconds")).transformWithState(new Idle, TimeMode.EventTime(),
      OutputMode.Append()).toDF(Columns: _*)

  /** Value, list and map with a time to live of a millisecond, which ends before the next batch, and the same with an
   * hour; a timer that is due then, for each batch that a key is in.
   */
  def byProcessingTime(rows: DataFrame): DataFrame =
    events(rows).transformWithState(new Expiring, TimeMode.ProcessingTime(), OutputMode.Append()).toDF(Columns: _*)

  /** A list by key that only grows, of what comes as a note; says how long it is. */
  def appended(rows: DataFrame): DataFrame = appended(rows, OutputMode.Append())

  /** The same in update mode, which real-time mode needs. */
  def appendedInUpdateMode(rows: DataFrame): DataFrame = appended(rows, OutputMode.Update())

  private def appended(rows: DataFrame, mode: OutputMode): DataFrame =
    rows.selectExpr("coalesce(key, 'none') AS key", "coalesce(amount, 0) AS amount", "note").as[Note].groupByKey(_._1)
      .transformWithState(new Appended, TimeMode.None(), mode).toDF("key", "values")

  /** Each number of a key comes out at once, and once more by a timer soon after; the largest one lives for a
   * millisecond or an hour. For real-time mode: the output does not depend on how many rows a call has.
   */
  def twice(rows: DataFrame): DataFrame =
    rows.selectExpr("coalesce(key, 'none') AS key", "id", "note").as[Note].groupByKey(_._1)
      .transformWithState(new Twice, TimeMode.ProcessingTime(), OutputMode.Update()).toDF(Columns: _*)

  private def events(rows: DataFrame) =
    rows.selectExpr("coalesce(key, 'none')", "coalesce(amount, 0)", "at").as[Event].groupByKey(_._1)

  private final class Idle extends StatefulProcessor[String, Event, Told] {
    private val IdleMs = 15000L
    @transient private var count: ValueState[Long] = _
    @transient private var amounts: ListState[Long] = _
    @transient private var seconds: MapState[Long, Long] = _

    override def init(outputMode: OutputMode, timeMode: TimeMode): Unit = {
      count = getHandle.getValueState("count", Encoders.scalaLong, TTLConfig.NONE)
      amounts = getHandle.getListState("amounts", Encoders.scalaLong, TTLConfig.NONE)
      seconds = getHandle.getMapState("seconds", Encoders.scalaLong, Encoders.scalaLong, TTLConfig.NONE)
    }

    override def handleInputRows(key: String, rows: Iterator[Event], timers: TimerValues): Iterator[Told] = {
      val events = rows.toSeq.sortBy(event => (event._3.getTime, event._2))
      count.update((if (count.exists()) count.get() else 0L) + events.length)
      amounts.appendList(events.map(_._2).toArray)
      events.foreach(event => seconds.updateValue(event._3.getTime / 1000 % 7, event._2))
      getHandle.listTimers().toSeq.foreach(getHandle.deleteTimer)
      getHandle.registerTimer(timers.getCurrentWatermarkInMs() + IdleMs)
      Iterator((key, "seen", count.get(), s"${amounts.get().sum} ${seconds.iterator().toSeq.sorted.mkString(" ")}"))
    }

    override def handleExpiredTimer(key: String, timers: TimerValues, expired: ExpiredTimerInfo): Iterator[Told] = {
      val answer = (key, "idle", count.get(), amounts.get().mkString(" "))
      count.clear()
      amounts.clear()
      seconds.clear()
      Iterator(answer)
    }
  }

  private final class Appended extends StatefulProcessor[String, Note, (String, Long)] {
    @transient private var notes: ListState[(Long, String)] = _

    override def init(outputMode: OutputMode, timeMode: TimeMode): Unit =
      notes = getHandle.getListState("notes", Encoders.tuple(Encoders.scalaLong, Encoders.STRING), TTLConfig.NONE)

    override def handleInputRows(key: String, rows: Iterator[Note], timers: TimerValues): Iterator[(String, Long)] = {
      rows.foreach(row => notes.appendValue((row._2, row._3)))
      Iterator((key, notes.get().length.toLong))
    }
  }

  private final class Twice extends StatefulProcessor[String, Note, Told] {
    private val AfterMs = 150L
    @transient private var sum, brief, long: ValueState[Long] = _
    @transient private var waiting: MapState[Long, Long] = _

    override def init(outputMode: OutputMode, timeMode: TimeMode): Unit = {
      def value(name: String, ttl: TTLConfig) = getHandle.getValueState(name, Encoders.scalaLong, ttl)
      sum = value("sum", TTLConfig.NONE)
      brief = value("brief", TTLConfig(Duration.ofMillis(1)))
      long = value("long", TTLConfig(Duration.ofHours(1)))
      waiting = getHandle.getMapState("waiting", Encoders.scalaLong, Encoders.scalaLong, TTLConfig.NONE)
    }

    override def handleInputRows(key: String, rows: Iterator[Note], timers: TimerValues): Iterator[Told] = {
      val numbers = rows.map(_._2).toList
      sum.update((if (sum.exists()) sum.get() else 0L) + numbers.sum)
      Seq(brief, long).foreach(state => state.update((numbers ++ (if (state.exists()) Seq(state.get()) else Nil)).max))
      numbers.foreach(number => waiting.updateValue(number, number))
      getHandle.registerTimer(timers.getCurrentProcessingTimeInMs() + AfterMs)
      numbers.iterator.map((key, "came", _, ""))
    }

    override def handleExpiredTimer(key: String, timers: TimerValues, expired: ExpiredTimerInfo): Iterator[Told] = {
      val due = waiting.keys().toList
      due.foreach(waiting.removeKey)
      due.iterator.map((key, "due", _, ""))
    }
  }

  private final class Expiring extends StatefulProcessor[String, Event, Told] {
    private val (briefly, long) = (TTLConfig(Duration.ofMillis(1)), TTLConfig(Duration.ofHours(1)))
    @transient private var values: Seq[ValueState[Long]] = _
    @transient private var lists: Seq[ListState[Long]] = _
    @transient private var maps: Seq[MapState[Long, Long]] = _

    override def init(outputMode: OutputMode, timeMode: TimeMode): Unit = {
      val handle = getHandle
      val kinds = Seq("brief" -> briefly, "long" -> long)
      values = kinds.map { case (name, ttl) => handle.getValueState(s"${name}Value", Encoders.scalaLong, ttl) }
      lists = kinds.map { case (name, ttl) => handle.getListState(s"${name}List", Encoders.scalaLong, ttl) }
      maps = kinds.map { case (name, ttl) =>
        handle.getMapState(s"${name}Map", Encoders.scalaLong, Encoders.scalaLong, ttl)
      }
    }

    override def handleInputRows(key: String, rows: Iterator[Event], timers: TimerValues): Iterator[Told] = {
      val amounts = rows.map(_._2).toSeq.sorted
      val content = Seq(
        values.map(state => if (state.exists()) state.get() else "none"), lists.map(_.get().mkString("[", " ", "]")),
        maps.map(_.iterator().toSeq.sorted.mkString("{", " ", "}")))
      values.foreach(_.update(amounts.sum))
      lists.foreach(_.appendList(amounts.toArray))
      maps.foreach(state => amounts.foreach(amount => state.updateValue(amount % 5, amount)))
      getHandle.registerTimer(timers.getCurrentProcessingTimeInMs() + 1)
      Iterator((key, "seen", amounts.length, content.map(_.mkString(" ")).mkString("; ")))
    }

    override def handleExpiredTimer(key: String, timers: TimerValues, expired: ExpiredTimerInfo): Iterator[Told] =
      Iterator((key, "due", 0L, ""))
  }
}
