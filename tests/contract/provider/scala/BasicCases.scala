package io.dynastate.conformance

import Rows.v
import Shapes._
import io.dynastate.compat._

import org.apache.spark.sql.execution.streaming.state._
import org.apache.spark.sql.types._

/** Keys and values, one of each: what the base suite of Spark's state stores tests, and what every operator does. */
final class BasicCases(scene: Scene) extends Cases {
  import scene._
  import Scene.OutOfOrder

  private val BadKey =
    Seq("STATE_STORE_KEY_ROW_FORMAT_VALIDATION_FAILURE", "CANNOT_LOAD_STATE_STORE.KEY_ROW_FORMAT_VALIDATION_FAILURE")
  private val BadValue = Seq("STATE_STORE_VALUE_ROW_FORMAT_VALIDATION_FAILURE",
    "CANNOT_LOAD_STATE_STORE.VALUE_ROW_FORMAT_VALIDATION_FAILURE")

  testEachWay("get-put-remove-commit-iterate") {
    val store = open(provider, 0)
    val t = table(store)
    same("an empty store has no rows", t.sorted, Nil)
    same("an absent key", t.get(v("a", 0)), null)
    t.put(v("a", 0), v(1))
    same("a row of its own", t.get(v("a", 0)), v(1))
    t.put(v("b", 0), v(2))
    t.put(v("b", 0), v(3))
    same("a row put twice", t.get(v("b", 0)), v(3))
    t.put(v("aa", 0), v(4))
    t.remove(v("aa", 0))
    t.remove(v("zz", 0))
    same("a removed row", t.get(v("aa", 0)), null)
    same("rows of its own", t.sorted, Seq(v("a", 0) -> v(1), v("b", 0) -> v(3)))
    same("version before commit", store.version, 0L)
    holds("not committed yet", !store.hasCommitted)()
    same("commit answers", commit(store), 1L)
    holds("committed", store.hasCommitted)()

    same("in the next version", rowsAt(provider, 1), Seq(v("a", 0) -> v(1), v("b", 0) -> v(3)))
    write(provider, 1) { t =>
      t.remove(v("b", 0))
      t.remove(v("a", 0))
      t.put(v("a", 0), v(9))
      t.put(v("c", -1), v(-1))
      t.put(v("d", 0), v(2))
      t.remove(v("d", 0))
    }
    for ((when, from) <- Seq("in memory" -> provider, "by another instance" -> fresh())) {
      same(when, rowsAt(from, 2), Seq(v("a", 0) -> v(9), v("c", -1) -> v(-1)))
    }
    same("the version before, by another instance", rowsAt(fresh(), 1), Seq(v("a", 0) -> v(1), v("b", 0) -> v(3)))
  }

  testEachWay("prefix-scan") {
    val words = Seq("", "a", "aa", "a\u0000", "b", "\uffff", "a" * 300, "a" * 5000)
    def scanned(t: Table, word: String) = t.prefixed(v(word)).map(_._1(1).asInstanceOf[Int]).sorted
    def check(t: Table, when: String): Unit = {
      for (word <- words)
        same(s"$when, '${word.take(5)}'", scanned(t, word), if (word == "b") Seq(-2, -1, 1, 2) else -2 to 2)
      same(s"$when, a value", t.prefixed(v("a")).toMap.get(v("a", 2)), Some(v(2)))
      same(s"$when, a word that is not there", scanned(t, "c"), Nil)
    }
    val first = fresh(Prefixed)
    val store = open(first, 0)
    val t = table(store, Prefixed)
    same("an empty store", scanned(t, "a"), Nil)
    for (word <- words; number <- -2 to 2) t.put(v(word, number), v(number))
    t.remove(v("b", 0))
    check(t, "own rows")
    commit(store)
    look(first, 1, Prefixed)(check(_, "in memory"))
    val second = fresh(Prefixed)
    look(second, 1, Prefixed) { t =>
      check(t, "reloaded")
      t.put(v("a", 9), v(9))
      t.remove(v("a", 1))
      t.put(v("a", 2), v(33))
      t.put(v("c", 1), v(1))
      same("own changes over committed rows", t.prefixed(v("a")).map(_._2.head).toSet, Set(-2, -1, 0, 33, 9))
      same("of own rows only", t.prefixed(v("c")), Seq(v("c", 1) -> v(1)))
    }
    look(second, 1, Prefixed)(check(_, "after abort"))
  }

  testEachWay("number-of-keys") {
    val store = open(provider, 0)
    for (number <- 1 to 5) table(store).put(v("a", number), v(number))
    commit(store)
    same("five were put", store.metrics.numKeys, 5L)
    val next = open(provider, 1)
    table(next).remove(v("a", 1))
    table(next).remove(v("b", 1))
    table(next).put(v("a", 2), v(22))
    commit(next)
    same("one was removed, one was never there, one put again", next.metrics.numKeys, 4L)
    val last = open(fresh(), 2)
    commit(last)
    same("counted again by another instance", last.metrics.numKeys, 4L)
  }

  testBothWays("removing-while-iterating") {
    write(provider, 0)(t => for (number <- 1 to 50) t.put(v("a", number), v(number)))
    val store = open(provider, 1)
    val t = table(store)
    val pairs = store.iterator(t.shape.name)
    var count = 0
    pairs.foreach { pair =>
      count += 1
      val (key, value) = t.pairOf(pair)
      if (value.head.asInstanceOf[Int] % 2 == 0) t.remove(key)
    }
    pairs.close()
    same("every row was shown", count, 50)
    same("those left", t.sorted.map(_._2.head.asInstanceOf[Int]).sorted, 1 to 49 by 2)
    commit(store)
    same("those left, reloaded", rowsAt(fresh(), 2).length, 25)
  }

  testBothWays("changing-while-iterating") {
    write(provider, 0)(t => for (number <- 1 to 20) t.put(v("a", number), v(number)))
    val store = open(provider, 1)
    val t = table(store)
    for (number <- 21 to 40) t.put(v("a", number), v(number))
    val pairs = store.iterator(t.shape.name)
    val keys = pairs.map { pair =>
      val (key, _) = t.pairOf(pair)
      val number = key(1).asInstanceOf[Int]
      // As in session windows and timers: each returned row leads to a put of it, and of another.
      if (number <= 40) {
        t.put(key, v(-number))
        t.put(v("b", number), v(number))
      }
      key
    }.toList
    pairs.close()
    same("no row was shown twice", keys.distinct.length, keys.length)
    same("every row that was there was shown", keys.filter(_.head == "a").map(_(1)).toSet, (1 to 40).toSet)
    same("what was put", t.sorted.toMap, (1 to 40).flatMap(n => Seq(v("a", n) -> v(-n), v("b", n) -> v(n))).toMap)
    store.abort()
  }

  testEachWay("abort") {
    write(provider, 0)(_.put(v("a", 0), v(1)))
    val store = open(provider, 1)
    table(store).put(v("a", 0), v(2))
    table(store).put(v("b", 0), v(2))
    store.abort()
    holds("not committed", !store.hasCommitted)()
    same("the base is as it was", rowsAt(provider, 1), Seq(v("a", 0) -> v(1)))
    refuses("there is no next version", "CANNOT_LOAD_STATE_STORE")(read(fresh(), 2).get(Rows.row(WordAndNumber,
          v("a", 0)), "default"))
    write(provider, 1)(_.put(v("c", 0), v(3)))
    same("the next attempt has nothing of it", rowsAt(fresh(), 2), Seq(v("a", 0) -> v(1), v("c", 0) -> v(3)))
  }

  testEachWay("missing-versions") {
    for (version <- 0 to 1) write(provider, version)(_.put(v("a", version), v(version)))
    def opening(version: Long) =
      () => provider.getStore(version, if (subject.ids && version > 0) idOf(2) else None).abort()
    refuses("a negative version", "UNEXPECTED_STATE_STORE_VERSION", "CANNOT_LOAD_STATE_STORE.UNEXPECTED_VERSION")(
      opening(-1)())
    refuses("a negative version to read", "UNEXPECTED_STATE_STORE_VERSION",
      "CANNOT_LOAD_STATE_STORE.UNEXPECTED_VERSION")(provider.getReadStore(-1, None))
    refuses("a version to come", "CANNOT_LOAD_STATE_STORE")(opening(3)())
    refuses("a version far away", "CANNOT_LOAD_STATE_STORE")(opening(30)())
    same("it is of use afterwards", rowsAt(provider, 2), Seq(v("a", 0) -> v(0), v("a", 1) -> v(1)))
  }

  testEachWay("a-reader-beside-a-writer") {
    write(provider, 0)(_.put(v("a", 0), v(1)))
    // The two stores of an aggregation, without the upgrade.
    val reader = read(provider, 1)
    val writer = open(provider, 1)
    table(writer).put(v("a", 0), v(2))
    table(writer).put(v("b", 0), v(2))
    same("the reader sees nothing of it", table(reader).sorted, Seq(v("a", 0) -> v(1)))
    commit(writer)
    same("nor after commit", table(reader).sorted, Seq(v("a", 0) -> v(1)))
    reader.abort()
    same("abort of the reader takes nothing back", rowsAt(provider, 2), Seq(v("a", 0) -> v(2), v("b", 0) -> v(2)))
    same("nor for another instance", rowsAt(fresh(), 2), Seq(v("a", 0) -> v(2), v("b", 0) -> v(2)))
  }

  testEachWay("memory-is-reported") {
    val initial = open(provider, 0)
    commit(initial)
    val empty = initial.metrics.memoryUsedBytes
    val store = open(provider, 1)
    for (number <- 1 to 5000) table(store).put(v("a", number), v(number))
    commit(store)
    holds("it grows with the rows", store.metrics.memoryUsedBytes > empty)(
      s"$empty bytes, then ${store.metrics.memoryUsedBytes}")
  }

  testBothWays("nulls-are-refused") {
    val store = open(fresh(), 0)
    val key = Rows.row(WordAndNumber, v("a", 0))
    val value = Rows.row(OneInt, v(1))
    refuses("put of no value", "IllegalArgumentException")(store.put(key, null, "default"))
    refuses("put of no key", "IllegalStateException")(store.put(null, value, "default"))
    refuses("get of no key", "IllegalStateException")(store.get(null, "default"))
    refuses("remove of no key", "IllegalStateException")(store.remove(null, "default"))
    refuses("existence of no key", "IllegalStateException")(store.keyExists(null, "default"))
    same("the store is of use afterwards", table(store).sorted, Nil)
    store.abort()
  }

  testBothWays("null-columns") {
    val rows = Seq(v("a", null) -> v(null), v(null, 1) -> v(2), v(null, null) -> v(3))
    write(fresh(), 0)(t => rows.foreach { case (key, value) => t.put(key, value) })
    same("reloaded", rowsAt(fresh(), 1), rows.sortBy(_.toString))
  }

  test("row-format-is-validated") {
    val conf = Map("spark.sql.streaming.stateStore.formatValidation.enabled" -> "true")
    write(fresh(conf = conf), 0)(_.put(v("a", 0), v(1)))
    val fiveStrings = schema((1 to 5).map(n => s"c$n" -> StringType): _*)
    val valueShape = Plain.copy(value = fiveStrings)
    val keyShape = Plain.copy(key = fiveStrings, spec = NoPrefixKeyStateEncoderSpec(fiveStrings))
    def pairs(shape: Shape, extra: Map[String, String] = Map.empty) = {
      val store = read(fresh(shape, conf = conf, extra = extra), 1)
      val rows = store.iterator("default")
      while (rows.hasNext) rows.next()
    }
    refuses("another value schema", BadValue: _*)(pairs(valueShape))
    refuses("another key schema", BadKey: _*)(pairs(keyShape))
    refuses("another value schema, seen by get", BadValue: _*) {
      read(fresh(valueShape, conf = conf), 1).get(Rows.row(WordAndNumber, v("a", 0)), "default")
    }
    // dropDuplicates has values of another schema than it declares, and turns their check off.
    allows("values that are not to be checked")(pairs(valueShape, Map("formatValidationCheckValue" -> "false")))
  }

  test("rows-are-copied") {
    val store = open(provider, 0)
    val key = Rows.row(WordAndNumber, v("a", 1))
    val value = Rows.row(OneInt, v(1))
    store.put(key, value, "default")
    // Operators put the next row into the same objects.
    key.setInt(1, 2)
    value.setInt(0, 2)
    store.put(key, value, "default")
    val row = store.get(key, "default")
    val t = table(store)
    same("both are there", t.sorted, Seq(v("a", 1) -> v(1), v("a", 2) -> v(2)))
    value.setInt(0, 3)
    store.put(key, value, "default")
    same("a row that was got stays as it was", row.getInt(0), 2)
    commit(store)
    write(provider, 1)(t => for (number <- 1 to 100) t.put(v("a", number), v(-number)))
    same("also over the next commit", row.getInt(0), 2)
  }

  testWithAppends("commit-without-a-change") {
    for (version <- 0L to 2L) same(s"commit of version $version", write(provider, version)(_ => ()), version + 1)
    same("no rows", rowsAt(provider, 3), Nil)
    write(provider, 3)(_.put(v("a", 0), v(1)))
    for (version <- 4L to 6L) write(provider, version)(_ => ())
    same("the rows of before, reloaded", rowsAt(fresh(), 7), Seq(v("a", 0) -> v(1)))
  }

  testWithAppends("reads-after-commit") {
    val store = open(provider, 0)
    val t = table(store)
    t.put(v("a", 0), v(1))
    commit(store)
    allows("get")(same("the row", t.get(v("a", 0)), v(1)))
    allows("iterate")(same("the rows", t.rows, Seq(v("a", 0) -> v(1))))
    allows("exists")(same("the key", t.has(v("a", 0)), true))
  }

  testWithAppends("changes-after-the-end") {
    def refusesChanges(store: StateStore, after: String): Unit = {
      val t = table(store)
      refuses(s"put after $after", OutOfOrder: _*)(t.put(v("a", 0), v(2)))
      refuses(s"remove after $after", OutOfOrder: _*)(t.remove(v("a", 0)))
      refuses(s"commit after $after", OutOfOrder :+ "CANNOT_WRITE_STATE_STORE": _*)(store.commit())
    }
    val first = open(provider, 0)
    table(first).put(v("a", 0), v(1))
    commit(first)
    refusesChanges(first, "commit")
    val second = open(provider, 1)
    second.abort()
    refusesChanges(second, "abort")
    same("what was committed", rowsAt(provider, 1), Seq(v("a", 0) -> v(1)))
  }

  testWithAppends("abort-more-than-once") {
    write(provider, 0)(_.put(v("a", 0), v(1)))
    val store = open(provider, 1)
    table(store).put(v("a", 0), v(2))
    store.abort()
    // Spark's listener and the store's own both abort.
    allows("a second abort")(store.abort())
    val third = open(provider, 1)
    table(third).put(v("b", 0), v(2))
    commit(third)
    allows("abort after commit")(third.abort())
    same("what was committed stays", rowsAt(provider, 2), Seq(v("a", 0) -> v(1), v("b", 0) -> v(2)))
  }

  testWithAppends("read-store") {
    write(provider, 0)(_.put(v("a", 0), v(1)))
    val store = read(provider, 1)
    same("version", store.version, 1L)
    same("id", store.id, storeId)
    same("rows", table(store).rows, Seq(v("a", 0) -> v(1)))
    allows("release")(store.release())
    allows("release again")(store.release())
    val empty = read(provider, 0)
    same("version 0 has no rows", table(empty).rows, Nil)
    empty.release()
    same("nothing was changed", rowsAt(provider, 1), Seq(v("a", 0) -> v(1)))
  }

  test("exists-and-many-at-once") {
    write(provider, 0) { t =>
      t.put(v("a", 0), v(1))
      t.put(v("b", 0), v(2))
    }
    look(provider, 1) { t =>
      t.remove(v("b", 0))
      t.put(v("c", 0), v(3))
      same("committed", t.has(v("a", 0)), true)
      same("removed", t.has(v("b", 0)), false)
      same("own", t.has(v("c", 0)), true)
      same("absent", t.has(v("d", 0)), false)
      allows("many at once") {
        same("in the order of the keys", t.getAll(v("d", 0), v("c", 0), v("b", 0), v("a", 0), v("c", 0)),
          Seq(null, v(3), null, v(1), v(3)))
        same("of no keys", t.getAll(), Nil)
      }
    }
  }

  test("keys-without-columns") {
    val nothing = new StructType
    val shape = Plain.copy(key = nothing, spec = NoPrefixKeyStateEncoderSpec(nothing))
    val provider = fresh(shape)
    val store = open(provider, 0)
    val t = table(store, shape)
    same("absent", t.get(v()), null)
    t.put(v(), v(1))
    same("own", t.get(v()), v(1))
    commit(store)
    same("one key", store.metrics.numKeys, 1L)
    val other = fresh(shape)
    same("reloaded", rowsAt(other, 1, shape), Seq(v() -> v(1)))
    write(other, 1, shape)(_.remove(v()))
    same("removed, reloaded", rowsAt(fresh(shape), 2, shape), Nil)
  }

  test("null-type") {
    val nulls = schema("nothing" -> NullType)
    val keys = Plain.copy(key = nulls, spec = NoPrefixKeyStateEncoderSpec(nulls))
    val provider = fresh(keys)
    write(provider, 0, keys)(_.put(v(null), v(1)))
    same("as a key, reloaded", rowsAt(fresh(keys), 1, keys), Seq(v(null) -> v(1)))
    val values = Plain.copy(value = nulls)
    write(fresh(values), 0, values)(_.put(v("a", 1), v(null)))
    same("as a value, reloaded", rowsAt(fresh(values), 1, values), Seq(v("a", 1) -> v(null)))
  }

  testWithAppends("keys-of-several-kilobytes") {
    val words = Seq(1000, 1024, 1025, 2048, 5000, 70000).flatMap(length => Seq("x" * length, "x" * (length - 1) + "y"))
    write(provider, 0)(t => words.foreach(word => t.put(v(word, 1), v(word.length))))
    write(provider, 1)(_.remove(v(words.head, 1)))
    val expected = words.tail.map(word => v(word, 1) -> v(word.length)).sortBy(_.toString)
    holds("in memory", rowsAt(provider, 2) == expected)()
    holds("reloaded", rowsAt(fresh(), 2) == expected)()
  }

  testWithAppends("values-of-several-megabytes") {
    val shape = Plain.copy(value = OneString)
    val random = new scala.util.Random(7)
    // The first cannot be compressed, the second can.
    val large = Seq(v("a", 1) -> v(random.alphanumeric.take(3 << 20).mkString), v("b", 2) -> v("b" * (6 << 20)),
      v("c", 3) -> v("c"))
    val provider = fresh(shape)
    write(provider, 0, shape)(t => large.foreach { case (key, value) => t.put(key, value) })
    holds("in memory", rowsAt(provider, 1, shape) == large)()
    val other = fresh(shape)
    holds("reloaded", rowsAt(other, 1, shape) == large)()
    write(other, 1, shape)(t => t.put(v("a", 1), v("small")))
    holds("replaced, reloaded", rowsAt(fresh(shape), 2, shape) == Seq(v("a", 1) -> v("small")) ++ large.tail)()
  }

  testWithAppends("more-changes-than-are-sent-at-once") {
    val shape = Plain.copy(value = OneString)
    val provider = fresh(shape)
    def value(number: Int, turn: Int) = v(s"$turn-" * 50 + number)
    // Some 12 MB in all: changes of one key on both sides of what was sent.
    val store = open(provider, 0)
    val t = table(store, shape)
    for (turn <- 1 to 3; number <- 1 to 20000) {
      if ((number + turn) % 5 == 0) t.remove(v("a", number)) else t.put(v("a", number), value(number, turn))
    }
    val expected =
      (1 to 20000).collect { case number if (number + 3) % 5 != 0 => v("a", number) -> value(number, 3) }.toMap
    holds("before commit", t.rows.toMap == expected)()
    commit(store)
    same("keys", store.metrics.numKeys, expected.size.toLong)
    holds("reloaded", rowsAt(fresh(shape), 1, shape).toMap == expected)()
    // Some 5 MB, of few keys: an append looks its key up.
    val last = open(provider, 1)
    for (number <- 1 to 2000) table(last, shape).put(v("b", number), v("4-" * 1250 + number))
    last.abort()
    holds("after an abort of as many", rowsAt(provider, 1, shape).toMap == expected)()
  }
}
