package io.dynastate.benchmarks

import java.util.UUID

import org.apache.hadoop.conf.Configuration
import org.apache.spark.sql.catalyst.expressions.UnsafeRow
import org.apache.spark.sql.catalyst.expressions.codegen.UnsafeRowWriter
import org.apache.spark.sql.dynastate.benchmarks.MovedIterator
import org.apache.spark.sql.execution.streaming.state._
import org.apache.spark.sql.internal.SQLConf
import org.apache.spark.sql.types.{LongType, StringType, StructField, StructType}
import org.apache.spark.unsafe.types.UTF8String

/** Scans and lists of one state store provider with column families, driven through Spark's own traits, as
 * `ProviderBenchmark` drives gets and puts. Prints one JSON object on the last line of standard output. Every scan is
 * checked by its sum.
 */
object ScanBenchmark {
  private val Groups = 10000
  private val PerGroup = 10
  private val Rows = Groups * PerGroup
  /** C2 takes seconds to optimise Spark's decoding of keys: 2.5 µs a key before, 0.3 after. */
  private val Warmup = 60
  private val Turns = 15
  private val Appends = 2000
  private val LongList = 10000
  /** Timers that are due at once, and turns of all. */
  private val DueAtOnce = 10
  private val TimerTurns = 8

  private val groupKey = StructType(Seq(StructField("group", StringType), StructField("id", LongType)))
  private val timeKey = StructType(Seq(StructField("time", LongType), StructField("name", StringType)))
  private val listKey = StructType(Seq(StructField("name", StringType)))
  private val value = StructType(Seq(StructField("count", LongType), StructField("note", StringType)))

  def main(args: Array[String]): Unit = {
    val words = args.map(_.split("=", 2)).map(pair => pair(0) -> pair(1)).toMap
    val figures = new Figures
    val provider = open(words)
    load(provider)
    val store = provider.getStore(1)
    createFamilies(store)
    figures("iterate_ns") = median(Rows)(sum(store.iterator("plain")))
    figures("prefix_ns") =
      median(Rows)((0 until Groups).map(group => sum(store.prefixScan(prefix(group), "grouped"))).sum)
    figures("range_ns") = median(Rows) {
      (0 until Rows by 1000).map(from => sum(store.rangeScan(Some(time(from)), Some(time(from + 1000)), "timed"))).sum
    }
    store.abort()
    figures("timers_ns") = timers(provider) { store =>
      val iterator = new MovedIterator(store, "timed")
      (from, _) => iterator.moveTo(from)
    }
    figures("timers_by_ranges_ns") = timers(provider) { store => (_, bounds) =>
      store.rangeScan(Some(bounds._1), Some(bounds._2), "timed")
    }
    appends(provider, figures)
    provider.close()
    figures.printAndExit()
  }

  private def open(words: Map[String, String]): StateStoreProvider = {
    val session = new SQLConf
    val hadoop = new Configuration
    val conf = words.filter(_._1.contains(".")) ++ Map("spark.sql.streaming.stateStore.providerClass" -> words(
        "provider"), "spark.sql.streaming.stateStore.commitValidation.enabled" -> "false")
    conf.foreach { case (name, text) =>
      session.setConfString(name, text)
      hadoop.set(name, text)
    }
    hadoop.set("sql.streaming.runId", UUID.randomUUID().toString)
    val provider = StateStoreProvider.create(words("provider"))
    provider.init(StateStoreId(words("checkpoint"), 0, 0), groupKey, value, NoPrefixKeyStateEncoderSpec(groupKey),
      useColumnFamilies = true, new StateStoreConf(session, Map.empty[String, String]), hadoop)
    provider
  }

  private def createFamilies(store: StateStore): Unit = {
    store.createColFamilyIfAbsent("plain", groupKey, value, NoPrefixKeyStateEncoderSpec(groupKey))
    store.createColFamilyIfAbsent("grouped", groupKey, value, PrefixKeyScanStateEncoderSpec(groupKey, 1))
    store.createColFamilyIfAbsent("timed", timeKey, value, RangeKeyScanStateEncoderSpec(timeKey, Seq(0)))
    store.createColFamilyIfAbsent("lists", listKey, value, NoPrefixKeyStateEncoderSpec(listKey),
      useMultipleValuesPerKey = true)
  }

  private def load(provider: StateStoreProvider): Unit = {
    val store = provider.getStore(0)
    createFamilies(store)
    for (id <- 0 until Rows) {
      store.put(group(id), count(id), "plain")
      store.put(group(id), count(id), "grouped")
      store.put(time(id), count(id), "timed")
    }
    (0 until 10).foreach(at => store.merge(name("short"), count(at), "lists"))
    (0 until LongList).foreach(at => store.merge(name("long"), count(at), "lists"))
    store.commit()
  }

  /** Timers that are due are removed and set again, for after all others, round by round in one open store. Median ns
   * a timer of the last turns.
   *
   * @param due makes of a store what finds timers, by the prefix of the first or by bounds
   */
  private def timers(provider: StateStoreProvider)(
      due: StateStore => (UnsafeRow, (UnsafeRow, UnsafeRow)) => Iterator[UnsafeRowPair]): Double = {
    val turns = (0 until TimerTurns).map { _ =>
      val store = provider.getStore(1)
      createFamilies(store)
      val find = due(store)
      val started = System.nanoTime()
      for (from <- 0 until Rows by DueAtOnce) {
        val until = time(from + DueAtOnce).getLong(0)
        val pairs = find(row(1)(_.write(0, time(from).getLong(0))), (time(from), time(from + DueAtOnce)))
        var found = 0
        while (pairs.hasNext && {
            val pair = pairs.next()
            pair.key.getLong(0) < until && {
              store.remove(pair.key, "timed")
              store.put(time(from + found + Rows), count(found), "timed")
              found += 1
              true
            }
          }) {}
        require(found == DueAtOnce, s"$found timers were due, expected $DueAtOnce")
      }
      val nanos = System.nanoTime() - started
      store.abort()
      nanos.toDouble / Rows
    }
    turns.takeRight(5).sorted.apply(2)
  }

  /** Appends to the short list, then to the long one, each in its own versions: time of each, and bytes written by one.
   */
  private def appends(provider: StateStoreProvider, figures: Figures): Unit = {
    var version = 1L
    for (list <- Seq("warmup", "short", "long")) {
      val store = provider.getStore(version)
      createFamilies(store)
      val key = name(list)
      val started = System.nanoTime()
      (0 until Appends).foreach(at => store.merge(key, count(at), "lists"))
      figures(s"append_${list}_ns") = (System.nanoTime() - started).toDouble / Appends
      store.commit()
      version += 1
      val one = provider.getStore(version)
      createFamilies(one)
      one.merge(key, count(1), "lists")
      one.commit()
      version += 1
      figures(s"append_${list}_bytes") =
        one.metrics.customMetrics.collectFirst {
          case (metric, bytes) if metric.name == "dynastateBytesWritten" => bytes
        }.getOrElse(0L)
    }
    val last = provider.getStore(version)
    createFamilies(last)
    val length = last.valuesIterator(name("long"), "lists").size
    require(length == LongList + Appends + 1, s"the long list has $length values")
    last.abort()
  }

  private def sum(pairs: StateStoreIterator[UnsafeRowPair]): Long = {
    var total = 0L
    while (pairs.hasNext) total += pairs.next().value.getLong(0)
    pairs.close()
    total
  }

  /** Median ns a row of several turns after a warm-up; each must find every row once. */
  private def median(rows: Int)(scan: => Long): Double = {
    val expected = (0 until rows).map(_.toLong).sum
    val turns = (0 until Warmup + Turns).map { _ =>
      val started = System.nanoTime()
      val found = scan
      require(found == expected, s"a scan added up to $found, expected $expected")
      (System.nanoTime() - started).toDouble / rows
    }
    turns.drop(Warmup).sorted.apply(Turns / 2)
  }

  private def row(fields: Int)(fill: UnsafeRowWriter => Unit): UnsafeRow = {
    val writer = new UnsafeRowWriter(fields, 32)
    writer.reset()
    writer.zeroOutNullBytes()
    fill(writer)
    writer.getRow()
  }

  private def text(number: Long): UTF8String = UTF8String.fromString("group-%08d".format(number))

  private def group(id: Int): UnsafeRow = row(2) { out => out.write(0, text(id % Groups)); out.write(1, id.toLong) }

  private def prefix(group: Int): UnsafeRow = row(1)(_.write(0, text(group)))

  private def time(id: Int): UnsafeRow = row(2) { out =>
    out.write(0, id.toLong - Rows / 2); out.write(1, UTF8String.fromString("n"))
  }

  private def name(of: String): UnsafeRow = row(1)(_.write(0, UTF8String.fromString(of)))

  private def count(id: Int): UnsafeRow = row(2) { out =>
    out.write(0, id.toLong); out.write(1, UTF8String.fromString("twenty letters or so"))
  }
}
