package io.dynastate.conformance

import Rows.{v, Values}
import Shapes._
import io.dynastate.compat._

import org.apache.spark.sql.execution.streaming.state._
import org.apache.spark.sql.types._

/** Keys in order: prefix scans, range scans, keys that begin or end with a time, and removal of ranges. */
final class ScanCases(scene: Scene) extends Cases {
  import scene._
  import Need.Families

  private val Longs = ranged(LongType).named("longs")

  /** Put keys of one column in a shuffled order; they must be returned in the given order, now and reloaded. */
  private def comesBackInOrder(kind: DataType, sequence: Seq[Any]): Unit = {
    val shape = ranged(kind).named(s"by ${kind.simpleString}")
    val expected = sequence.map(each => v(Rows.values(shape.key, Rows.row(shape.key, v(each, "x"))).head, "x"))
    def keys(t: Table, from: Option[Any] = None, until: Option[Any] = None) =
      t.range(from.map(v(_, "x")), until.map(v(_, "x"))).map(_._1).map(_.toString)
    // As text, because NaN is not equal to itself, and -0.0 is equal to 0.0.
    val texts = expected.map(_.toString)
    def check(t: Table, when: String): Unit = {
      same(s"$when, all", keys(t), texts)
      same(s"$when, iterated", t.rows.map(_._1.toString), texts)
      for (at <- sequence.indices) {
        same(s"$when, from ${sequence(at)}", keys(t, from = Some(sequence(at))), texts.drop(at))
        same(s"$when, until ${sequence(at)}", keys(t, until = Some(sequence(at))), texts.take(at))
      }
    }
    val store = open(provider, 0)
    val t = table(store, shape)
    new scala.util.Random(1).shuffle(sequence).foreach(each => t.put(v(each, "x"), v(1)))
    check(t, "own")
    commit(store)
    look(fresh(), 1, shape)(check(_, "reloaded"))
  }

  test("range-of-bytes", Families)(comesBackInOrder(ByteType,
      Seq[Any](-128, -2, -1, 0, 1, 127).map(_.asInstanceOf[Int].toByte) :+ null))

  test("range-of-shorts", Families)(comesBackInOrder(ShortType,
      Seq(-32768, -256, -255, -1, 0, 1, 255, 256, 32767).map(_.toShort) :+ null))

  test("range-of-ints", Families)(comesBackInOrder(IntegerType,
      Seq(Int.MinValue, -65536, -1, 0, 1, 255, 256, Int.MaxValue, null)))

  test("range-of-longs", Families)(comesBackInOrder(LongType,
      Seq(Long.MinValue, -1L << 32, -256L, -1L, 0L, 1L, 1L << 31, 1L << 32, Long.MaxValue, null)))

  test("range-of-floats", Families)(comesBackInOrder(FloatType,
      Seq(Float.NegativeInfinity, -Float.MaxValue, -1.5f, -1f, -Float.MinPositiveValue, -0f, 0f, Float.MinPositiveValue,
        1f, 1.5f, Float.MaxValue, Float.PositiveInfinity, Float.NaN, null)))

  test("range-of-doubles", Families)(comesBackInOrder(DoubleType,
      Seq(Double.NegativeInfinity, -Double.MaxValue, -1e10, -1.5, -Double.MinPositiveValue, -0d, 0d,
        Double.MinPositiveValue, 0.5, 1e10, Double.MaxValue, Double.PositiveInfinity, Double.NaN, null)))

  testWithAppends("range-by-several-columns", Families) {
    val key = schema("name" -> StringType, "low" -> IntegerType, "high" -> LongType)
    // First by the last column, then by the one in the middle; not by the name.
    val shape = Plain.copy(key = key, spec = RangeKeyScanStateEncoderSpec(key, Seq(2, 1))).named("several")
    val keys = for (high <- Seq[Any](-1L, 0L, 7L, null); low <- Seq[Any](-5, 0, 3, null)) yield v(s"n$low", low, high)
    val store = open(provider, 0)
    val t = table(store, shape)
    keys.reverse.zipWithIndex.foreach { case (each, at) => t.put(each, v(at)) }
    same("own", t.rows.map(_._1), keys)
    commit(store)
    look(fresh(), 1, shape) { t =>
      same("reloaded", t.rows.map(_._1), keys)
      same("between two", t.range(Some(v("n3", 3, -1L)), Some(v("n0", 0, 7L))).map(_._1), keys.slice(2, 9))
      same("get", t.get(v("n-5", -5, 0L)) != null, true)
      same("prefix scan is by the ordering columns", t.prefixed(v(7L, 3)).map(_._1), Seq(v("n3", 3, 7L)))
    }
  }

  testWithAppends("edges-of-ranges", Families) {
    write(provider, 0, Longs)(t => for (number <- 0L to 90L by 10L) t.put(v(number, "x"), v(number.toInt)))
    def key(number: Long) = Some(v(number, "x"))
    def numbers(t: Table, from: Option[Values], until: Option[Values]) = t.range(from, until).map(_._1.head)
    def check(t: Table, when: String): Unit = {
      same(s"$when, all", numbers(t, None, None), 0L to 90L by 10L)
      same(s"$when, the start is in", numbers(t, key(20), key(50)), Seq(20L, 30L, 40L))
      same(s"$when, between rows", numbers(t, key(21), key(51)), Seq(30L, 40L, 50L))
      same(s"$when, from a row", numbers(t, key(80), None), Seq(80L, 90L))
      same(s"$when, from the last row", numbers(t, key(90), None), Seq(90L))
      same(s"$when, from behind the last row", numbers(t, key(91), None), Nil)
      same(s"$when, until a row", numbers(t, None, key(20)), Seq(0L, 10L))
      same(s"$when, until the first row", numbers(t, None, key(0)), Nil)
      same(s"$when, empty, start and end the same", numbers(t, key(20), key(20)), Nil)
      same(s"$when, empty, the end before the start", numbers(t, key(50), key(20)), Nil)
      same(s"$when, empty, nothing between", numbers(t, key(51), key(59)), Nil)
      same(s"$when, wider than all", numbers(t, key(-1000), key(1000)), 0L to 90L by 10L)
    }
    look(provider, 1, Longs)(check(_, "in memory"))
    look(fresh(), 1, Longs)(check(_, "reloaded"))
  }

  testWithAppends("own-changes-in-a-range", Families) {
    write(provider, 0, Longs)(t => for (number <- 0L to 9L) t.put(v(number, "x"), v(number.toInt)))
    val store = open(provider, 1)
    val t = table(store, Longs)
    def rows(t: Table) = t.range(Some(v(2L, "x")), Some(v(8L, "x"))).map { case (key, value) => key.head -> value.head }
    same("before", rows(t).map(_._1), 2L to 7L)
    t.remove(v(2L, "x"))
    t.remove(v(5L, "x"))
    t.put(v(7L, "x"), v(77))
    t.put(v(8L, "x"), v(88))
    t.put(v(3L, "y"), v(33))
    same("after", rows(t).map(_._1), Seq(3L, 3L, 4L, 6L, 7L))
    same("values", rows(t).map(_._2).sortBy(_.toString.toInt), Seq(3, 4, 6, 33, 77))
    t.put(v(5L, "x"), v(55))
    same("put again", rows(t).map(_._1), Seq(3L, 3L, 4L, 5L, 6L, 7L))
    commit(store)
    val expected = Seq(3L, 3L, 4L, 5L, 6L, 7L)
    def scan(t: Table) = rows(t).map(_._1)
    same("committed", look(provider, 2, Longs)(scan), expected)
    same("the version before", look(provider, 1, Longs)(scan), 2L to 7L)
    same("reloaded", look(fresh(), 2, Longs)(scan), expected)
  }

  test("changing-while-scanning", Families) {
    write(provider, 0, Longs)(t => for (number <- 0L until 60L) t.put(v(number, "timer"), v(number.toInt)))
    val store = open(provider, 1)
    val t = table(store, Longs)
    // As in timers: each that is due is removed, and sets others, some of them before the end of the scan.
    val iterator = t.scan(None, Some(v(40L, "")))
    val timers = iterator.map { pair =>
      val (key, _) = t.pairOf(pair)
      val number = key.head.asInstanceOf[Long]
      t.remove(key)
      t.put(v(number + 30, "again"), v(number.toInt))
      (number, key(1))
    }.toList
    iterator.close()
    same("those that were due, in order", timers.filter(_._2 == "timer").map(_._1), 0L until 40L)
    holds("none twice", timers.distinct.length == timers.length)(s"$timers")
    same("those left", t.rows.map(_._1).filter(_(1) == "timer").map(_.head), 40L until 60L)
    commit(store)
    same("those left, reloaded", look(fresh(), 2, Longs)(_.rows.map(_._1).filter(_(1) == "timer").map(_.head)),
      40L until 60L)
  }

  testWithAppends("a-range-of-thousands", Families) {
    val random = new scala.util.Random(3)
    write(provider, 0, Longs)(t =>
      random.shuffle((0L until 5000L).toList).foreach(number => t.put(v(number, "x"), v(number.toInt))))
    val store = open(provider, 1)
    val t = table(store, Longs)
    for (number <- 0L until 5000L by 3L) t.remove(v(number, "x"))
    for (number <- 5000L until 7000L) t.put(v(number, "x"), v(1))
    val expected = (0L until 7000L).filter(number => number >= 5000 || number % 3 != 0)
    same("over committed rows", t.range(None, None).map(_._1.head), expected)
    same("a part", t.range(Some(v(1000L, "")), Some(v(6000L, ""))).map(_._1.head),
      expected.filter(number => number >= 1000 && number < 6000))
    commit(store)
    same("reloaded", look(fresh(), 2, Longs)(_.rows.map(_._1.head)), expected)
  }

  testWithAppends("an-older-version-in-order", Families) {
    for (version <- 0L to 3L) {
      write(provider, version, Longs) { t =>
        t.remove(v(version * 10 - 10, "x"))
        for (number <- version * 10 to version * 10 + 4) t.put(v(number, "x"), v(version.toInt))
      }
    }
    def at(version: Long) = (0L until version).flatMap { each =>
      (each * 10 to each * 10 + 4).filter(number => number % 10 != 0 || each == version - 1)
    }
    for (version <- Seq(4L, 2L, 3L, 1L, 4L))
      same(s"version $version", look(provider, version, Longs)(_.rows.map(_._1.head)), at(version))
  }

  test("scans-that-are-refused", Families) {
    val store = open(fresh(), 0)
    val plain = table(store, Plain.named("plain"))
    val other = table(store, Prefixed.named("prefixed"))
    val (from, until) = (v("a", 0), v("b", 0))
    refuses("a prefix of plain keys", "IllegalArgumentException")(plain.prefixed(v("a")))
    refuses("a range of plain keys", "IllegalArgumentException")(plain.range(Some(from), Some(until)))
    refuses("a range of keys with a prefix", "IllegalArgumentException")(other.range(None, None))
    refuses("removal of a range of plain keys", "IllegalStateException", "IllegalArgumentException")(
      plain.deleteRange(from, until))
    refuses("removal of a range of keys with a prefix", "IllegalStateException", "IllegalArgumentException")(
      other.deleteRange(from, until))
    refuses("a prefix of keys that begin with a time", "IllegalArgumentException", "IllegalStateException",
      "UNSUPPORTED", "INTERNAL_ERROR") {
      table(store, TimeFirst.named("times")).prefixed(v("a"))
    }
    val text = schema("c0" -> StringType, "c1" -> LongType)
    refuses("order by a column of any size", "STATE_STORE_VARIABLE_SIZE_ORDERING_COLS_NOT_SUPPORTED") {
      val t = table(store, Plain.copy(name = "text", key = text, spec = RangeKeyScanStateEncoderSpec(text, Seq(0))))
      t.put(v("a", 1L), v(1))
    }
    store.abort()
  }

  testWithAppends("a-null-prefix", Families) {
    val shape = Prefixed.named("prefixed")
    val rows = Seq(v(null, 1) -> v(1), v(null, null) -> v(2))
    write(fresh(), 0, shape) { t =>
      rows.foreach { case (key, value) => t.put(key, value) }
      t.put(v("a", 1), v(3))
    }
    same("reloaded", look(fresh(), 1, shape)(_.prefixed(v(null)).sortBy(_._2.toString)), rows)
  }

  test("two-scans-at-once", Families) {
    val shape = Prefixed.named("prefixed")
    write(provider, 0, shape)(t => for (word <- Seq("a", "b"); number <- 1 to 3) t.put(v(word, number), v(number)))
    look(provider, 1, shape) { t =>
      val one = t.store.prefixScan(t.prefixRow(v("a")), shape.name)
      val other = t.store.prefixScan(t.prefixRow(v("b")), shape.name)
      // Rows are reused, so each is read before the next.
      val pairs = (1 to 3).flatMap(_ => Seq(t.pairOf(one.next()), t.pairOf(other.next())))
      same("each shows its own rows", pairs.map(_._1.head), Seq("a", "b", "a", "b", "a", "b"))
      same("both are at the end", Seq(one.hasNext, other.hasNext), Seq(false, false))
      Seq(one, other).foreach(_.close())
    }
  }

  test("an-iterator-that-is-moved", Families) {
    write(provider, 0, Longs)(t => for (number <- 0L until 40L) t.put(v(number, "x"), v(number.toInt)))
    val store = open(provider, 1)
    val t = table(store, Longs)
    val (iterator, move) = reusableIterator(store, Longs.name)
    def next(count: Int): Seq[Values] = (1 to count).map(_ => t.pairOf(iterator.next())._2)
    def moveTo(number: Long): Unit = move(t.prefixRow(v(number)))
    same("from the first", next(2), Seq(v(0), v(1)))
    t.put(v(2L, "x"), v(-2))
    t.remove(v(3L, "x"))
    t.put(v(50L, "x"), v(50))
    same("without later changes", next(3), Seq(v(2), v(3), v(4)))
    moveTo(1)
    same("with them", next(3), Seq(v(1), v(-2), v(4)))
    moveTo(39)
    same("to the end of the family", next(2), Seq(v(39), v(50)))
    same("at the end", iterator.hasNext, false)
    moveTo(60)
    same("after the end", iterator.hasNext, false)
    moveTo(-5)
    same("back", next(1), Seq(v(0)))
    table(store, Longs.named("more")).put(v(7L, "x"), v(7))
    moveTo(45)
    same("without other families", next(1), Seq(v(50)))
    same("at their end", iterator.hasNext, false)
    refuses("an iterator of plain keys that is moved", "IllegalArgumentException", "STATE_STORE_UNSUPPORTED") {
      val plain = table(store, Plain.named("plain"))
      reusableIterator(store, "plain")._2(plain.prefixRow(v("a")))
    }
    store.abort()
  }

  test("an-iterator-that-is-moved-by-timers", Families) {
    val (due, later) = (700L, 1000L)
    write(provider, 0, Longs)(t => for (number <- 0L until due) t.put(v(number, "timer"), v(number.toInt)))
    val store = open(provider, 1)
    val t = table(store, Longs)
    val (iterator, move) = reusableIterator(store, Longs.name)
    // As in timers: those until a time are removed, and set others, of which some are due, too.
    val fired = (100L to due + 100 by 100).map { until =>
      if (until > 100) move(t.prefixRow(v(until - 100)))
      val timers = iterator.map(t.pairOf(_)._1).takeWhile(_.head.asInstanceOf[Long] < until).map { key =>
        t.remove(key)
        t.put(v(key.head.asInstanceOf[Long] + (if (key(1) == "timer") 50L else later), "again"), v(1))
        key
      }.toList
      same(s"until $until, in order", timers.map(_.head), timers.map(_.head.asInstanceOf[Long]).sorted)
      timers.length
    }
    same("how many were due", fired, Seq(100) ++ Seq.fill(6)(150) ++ Seq(50))
    commit(store)
    // Those that were set before the next move's target are left.
    val left = (0L until due by 100).flatMap(at => at + 50 until at + 100)
    val again = (100L to due by 100).flatMap(at => at + later until at + later + 50)
    same("those left, reloaded", look(fresh(), 2, Longs)(_.rows.map(_._1.head.asInstanceOf[Long])), left ++ again)
  }

  testWithAppends("keys-that-begin-with-a-time", Families) {
    val shape = TimeFirst.named("times")
    val times = Seq(Long.MinValue, -1000L, -1L, 0L, 1L, 1000L, Long.MaxValue)
    write(provider, 0, shape)(t => times.reverse.foreach(time => t.put(v("k", time), v((time % 100).toInt))))
    def check(t: Table, when: String): Unit = {
      same(s"$when, in the order of time", t.rows.map(_._1(1)), times)
      same(s"$when, get", t.get(v("k", -1000L)), v(0))
      same(s"$when, a range", t.range(Some(v("", -1000L)), Some(v("", 1000L))).map(_._1(1)), Seq(-1000L, -1L, 0L, 1L))
      same(s"$when, until a time", t.range(None, Some(v("", 0L))).map(_._1(1)), times.take(3))
      same(s"$when, from a time", t.range(Some(v("", 1L)), None).map(_._1(1)), times.drop(4))
    }
    look(provider, 1, shape)(check(_, "in memory"))
    val other = fresh()
    look(other, 1, shape)(check(_, "reloaded"))
    write(other, 1, shape)(t => t.range(None, Some(v("", 0L))).foreach { case (key, _) => t.remove(key) })
    same("without what expired", look(fresh(), 2, shape)(_.rows.map(_._1(1))), times.drop(3))
  }

  testWithAppends("keys-that-end-with-a-time", Families) {
    val shape = TimeLast.named("times")
    val times = Seq(Long.MinValue, -1000L, -1L, 0L, 1L, 1000L, Long.MaxValue)
    write(provider, 0, shape)(t =>
      for (time <- times.reverse; word <- Seq("b", "a", "aa")) t.put(v(word, time), v((time % 100).toInt)))
    def check(t: Table, when: String): Unit = {
      for (word <- Seq("a", "aa", "b"))
        same(s"$when, of '$word', in the order of time", t.prefixed(v(word)).map(_._1), times.map(v(word, _)))
      same(s"$when, of a word that is not there", t.prefixed(v("c")), Nil)
      same(s"$when, get", t.get(v("a", 1L)), v(1))
      same(s"$when, a range of one word", t.range(Some(v("a", -1L)), Some(v("a", 1000L))).map(_._1),
        Seq(-1L, 0L, 1L).map(v("a", _)))
      same(s"$when, all", t.rows.length, 21)
    }
    look(provider, 1, shape)(check(_, "in memory"))
    look(fresh(), 1, shape) { t =>
      check(t, "reloaded")
      t.remove(v("a", 0L))
      t.put(v("a", 5L), v(5))
      same("with own changes", t.prefixed(v("a")).map(_._1(1)),
        Seq(Long.MinValue, -1000L, -1L, 1L, 5L, 1000L, Long.MaxValue))
    }
  }

  testWithAppends("removal-of-a-range", Families) {
    def numbers(t: Table) = t.rows.map(_._1.head)
    write(provider, 0, Longs)(t => for (number <- 0L to 99L) t.put(v(number, "x"), v(number.toInt)))
    val store = open(provider, 1)
    val t = table(store, Longs)
    t.put(v(30L, "own"), v(1))
    t.put(v(200L, "own"), v(1))
    t.deleteRange(v(10L, "x"), v(90L, "x"))
    same("the start goes, the end stays", numbers(t), (0L to 9L) ++ (90L to 99L) :+ 200L)
    t.put(v(50L, "x"), v(50))
    same("put again", t.get(v(50L, "x")), v(50))
    t.deleteRange(v(95L, "x"), v(95L, "x"))
    t.deleteRange(v(300L, "x"), v(400L, "x"))
    val expected = (0L to 9L) ++ Seq(50L) ++ (90L to 99L) :+ 200L
    same("empty ranges", numbers(t), expected)
    commit(store)
    same("keys", store.metrics.numKeys, expected.length.toLong)
    same("reloaded", look(fresh(), 2, Longs)(numbers), expected)
    same("the version before, reloaded", look(fresh(), 1, Longs)(numbers), 0L to 99L)
    look(provider, 2, Longs)(_.deleteRange(v(0L, "x"), v(99L, "x")))
    same("after abort", look(provider, 2, Longs)(numbers), expected)
  }

  test("removal-of-a-range-the-wrong-way-round", Families) {
    val t = table(open(provider, 0), Longs)
    for (number <- 0L to 9L) t.put(v(number, "x"), v(number.toInt))
    allows("it holds no rows")(t.deleteRange(v(7L, "x"), v(3L, "x")))
    same("nothing was removed", t.rows.map(_._1.head), 0L to 9L)
  }
}
