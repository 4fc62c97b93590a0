package io.dynastate.conformance

import Rows.v
import Shapes._
import io.dynastate.compat._

import org.apache.spark.sql.execution.streaming.state._
import org.apache.spark.sql.types._

/** Keys and values, one of each: what the base suite of Spark's state stores tests, and what every operator does. */
object BasicCases extends Cases {
  import Scene.OutOfOrder

  private val BadKey = Seq("STATE_STORE_KEY_ROW_FORMAT_VALIDATION_FAILURE", "CANNOT_LOAD_STATE_STORE.KEY_ROW_FORMAT_VALIDATION_FAILURE")
  private val BadValue = Seq("STATE_STORE_VALUE_ROW_FORMAT_VALIDATION_FAILURE", "CANNOT_LOAD_STATE_STORE.VALUE_ROW_FORMAT_VALIDATION_FAILURE")

  testBothWays("get-put-remove-commit-iterate") { (scene, families) =>
    import scene._
    val provider = scene.provider(families = families)
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
      t.put(v("a", 0), v(9))
      t.put(v("c", -1), v(-1))
    }
    same("by another instance", rowsAt(scene.provider(families = families), 2), Seq(v("a", 0) -> v(9), v("c", -1) -> v(-1)))
    same("the version before, by another instance", rowsAt(scene.provider(families = families), 1), Seq(v("a", 0) -> v(1), v("b", 0) -> v(3)))
  }

  testBothWays("prefix-scan") { (scene, families) =>
    import scene._
    def provider() = scene.provider(Prefixed, families)
    def scanned(t: Table, word: String) = t.prefixed(v(word)).sortBy(_.toString)
    val first = provider()
    val store = open(first, 0)
    val t = table(store, Prefixed)
    same("an empty store", scanned(t, "a"), Nil)
    for (word <- Seq("a", "b", "aa"); number <- 1 to 3) t.put(v(word, number), v(number))
    same("own rows", scanned(t, "a"), (1 to 3).map(n => v("a", n) -> v(n)))
    t.remove(v("a", 2))
    same("own rows, one removed", scanned(t, "a"), Seq(1, 3).map(n => v("a", n) -> v(n)))
    commit(store)

    val second = provider()
    look(second, 1, Prefixed) { t =>
      same("reloaded", scanned(t, "a"), Seq(1, 3).map(n => v("a", n) -> v(n)))
      same("a word that begins with another", scanned(t, "aa"), (1 to 3).map(n => v("aa", n) -> v(n)))
      same("a word that is not there", scanned(t, "c"), Nil)
      t.put(v("a", 9), v(9))
      t.remove(v("a", 1))
      t.put(v("a", 3), v(33))
      same("own changes over committed rows", scanned(t, "a"), Seq(v("a", 3) -> v(33), v("a", 9) -> v(9)))
    }
    same("after abort", look(second, 1, Prefixed)(scanned(_, "a")), Seq(1, 3).map(n => v("a", n) -> v(n)))
  }

  testBothWays("number-of-keys") { (scene, families) =>
    import scene._
    val provider = scene.provider(families = families)
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
    val reloaded = open(scene.provider(families = families), 2)
    commit(reloaded)
    same("counted again by another instance", reloaded.metrics.numKeys, 4L)
  }

  testBothWays("removing-while-iterating") { (scene, families) =>
    import scene._
    val provider = scene.provider(families = families)
    write(provider, 0)(t => for (number <- 1 to 50) t.put(v("a", number), v(number)))
    val store = open(provider, 1)
    val t = table(store)
    val pairs = store.iterator(t.shape.name)
    var seen = 0
    pairs.foreach { pair =>
      seen += 1
      val (key, value) = t.pairOf(pair)
      if (value.head.asInstanceOf[Int] % 2 == 0) t.remove(key)
    }
    pairs.close()
    same("every row was shown", seen, 50)
    same("those left", t.sorted.map(_._2.head.asInstanceOf[Int]).sorted, 1 to 49 by 2)
    commit(store)
    same("those left, reloaded", rowsAt(scene.provider(families = families), 2).length, 25)
  }

  testBothWays("changing-while-iterating") { (scene, families) =>
    import scene._
    val provider = scene.provider(families = families)
    write(provider, 0)(t => for (number <- 1 to 20) t.put(v("a", number), v(number)))
    val store = open(provider, 1)
    val t = table(store)
    for (number <- 21 to 40) t.put(v("a", number), v(number))
    val pairs = store.iterator(t.shape.name)
    val seen = pairs.map { pair =>
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
    same("no row was shown twice", seen.distinct.length, seen.length)
    same("every row that was there was shown", seen.filter(_.head == "a").map(_(1)).toSet, (1 to 40).toSet)
    same("what was put", t.sorted.toMap, (1 to 40).flatMap(n => Seq(v("a", n) -> v(-n), v("b", n) -> v(n))).toMap)
    store.abort()
  }

  testBothWays("abort") { (scene, families) =>
    import scene._
    val provider = scene.provider(families = families)
    write(provider, 0)(_.put(v("a", 0), v(1)))
    val store = open(provider, 1)
    table(store).put(v("a", 0), v(2))
    table(store).put(v("b", 0), v(2))
    store.abort()
    holds("not committed", !store.hasCommitted)()
    same("the base is as it was", rowsAt(provider, 1), Seq(v("a", 0) -> v(1)))
    refuses("there is no next version", "CANNOT_LOAD_STATE_STORE")(read(scene.provider(families = families), 2).get(Rows.row(WordAndNumber, v("a", 0)), "default"))
    write(provider, 1)(_.put(v("c", 0), v(3)))
    same("the next attempt has nothing of it", rowsAt(scene.provider(families = families), 2), Seq(v("a", 0) -> v(1), v("c", 0) -> v(3)))
  }

  testBothWays("missing-versions") { (scene, families) =>
    import scene._
    val provider = scene.provider(families = families)
    for (version <- 0 to 1) write(provider, version)(_.put(v("a", version), v(version)))
    def opening(version: Long) = () => provider.getStore(version, if (subject.ids && version > 0) idOf(2) else None).abort()
    refuses("a negative version", "UNEXPECTED_STATE_STORE_VERSION", "CANNOT_LOAD_STATE_STORE.UNEXPECTED_VERSION")(opening(-1)())
    refuses("a negative version to read", "UNEXPECTED_STATE_STORE_VERSION", "CANNOT_LOAD_STATE_STORE.UNEXPECTED_VERSION")(provider.getReadStore(-1, None))
    refuses("a version to come", "CANNOT_LOAD_STATE_STORE")(opening(3)())
    refuses("a version far away", "CANNOT_LOAD_STATE_STORE")(opening(30)())
    same("it is of use afterwards", rowsAt(provider, 2), Seq(v("a", 0) -> v(0), v("a", 1) -> v(1)))
  }

  testBothWays("a-reader-beside-a-writer") { (scene, families) =>
    import scene._
    val provider = scene.provider(families = families)
    write(provider, 0)(_.put(v("a", 0), v(1)))
    // The two stores of an aggregation, without the upgrade.
    val reader = read(provider, 1)
    val writer = open(provider, 1)
    table(writer).put(v("a", 0), v(2))
    table(writer).put(v("b", 0), v(2))
    same("the reader sees nothing of it", new Table(reader, Plain).sorted, Seq(v("a", 0) -> v(1)))
    commit(writer)
    same("nor after commit", new Table(reader, Plain).sorted, Seq(v("a", 0) -> v(1)))
    reader.abort()
    same("abort of the reader takes nothing back", rowsAt(provider, 2), Seq(v("a", 0) -> v(2), v("b", 0) -> v(2)))
    same("nor for another instance", rowsAt(scene.provider(families = families), 2), Seq(v("a", 0) -> v(2), v("b", 0) -> v(2)))
  }

  testBothWays("memory-is-reported") { (scene, families) =>
    import scene._
    val provider = scene.provider(families = families)
    val before = open(provider, 0)
    commit(before)
    val empty = before.metrics.memoryUsedBytes
    val store = open(provider, 1)
    for (number <- 1 to 5000) table(store).put(v("a", number), v(number))
    commit(store)
    holds("it grows with the rows", store.metrics.memoryUsedBytes > empty)(s"$empty bytes, then ${store.metrics.memoryUsedBytes}")
  }

  testBothWays("nulls-are-refused") { (scene, families) =>
    import scene._
    val store = open(scene.provider(families = families), 0)
    val key = Rows.row(WordAndNumber, v("a", 0))
    val value = Rows.row(OneInt, v(1))
    refuses("put of no value", "IllegalArgumentException")(store.put(key, null, "default"))
    refuses("put of no key", "IllegalStateException")(store.put(null, value, "default"))
    refuses("get of no key", "IllegalStateException")(store.get(null, "default"))
    refuses("remove of no key", "IllegalStateException")(store.remove(null, "default"))
    refuses("existence of no key", "IllegalStateException")(store.keyExists(null, "default"))
    same("the store is of use afterwards", new Table(store, Plain).sorted, Nil)
    store.abort()
  }

  testBothWays("null-columns") { (scene, families) =>
    import scene._
    val rows = Seq(v("a", null) -> v(null), v(null, 1) -> v(2), v(null, null) -> v(3))
    write(scene.provider(families = families), 0)(t => rows.foreach { case (key, value) => t.put(key, value) })
    same("reloaded", rowsAt(scene.provider(families = families), 1), rows.sortBy(_.toString))
  }

  test("row-format-is-validated") { scene =>
    import scene._
    val conf = Map("spark.sql.streaming.stateStore.formatValidation.enabled" -> "true")
    write(scene.provider(conf = conf), 0)(_.put(v("a", 0), v(1)))
    val fiveStrings = schema((1 to 5).map(n => s"c$n" -> StringType): _*)
    val valueShape = Plain.copy(value = fiveStrings)
    val keyShape = Plain.copy(key = fiveStrings, spec = NoPrefixKeyStateEncoderSpec(fiveStrings))
    def pairs(shape: Shape, extra: Map[String, String] = Map.empty) = {
      val store = read(scene.provider(shape, conf = conf, extra = extra), 1)
      val found = store.iterator("default")
      while (found.hasNext) found.next()
    }
    refuses("another value schema", BadValue: _*)(pairs(valueShape))
    refuses("another key schema", BadKey: _*)(pairs(keyShape))
    refuses("another value schema, seen by get", BadValue: _*) {
      read(scene.provider(valueShape, conf = conf), 1).get(Rows.row(WordAndNumber, v("a", 0)), "default")
    }
    // dropDuplicates has values of another schema than it declares, and turns their check off.
    allows("values that are not to be checked")(pairs(valueShape, Map("formatValidationCheckValue" -> "false")))
  }

  test("rows-are-copied") { scene =>
    import scene._
    val provider = scene.provider()
    val store = open(provider, 0)
    val key = Rows.row(WordAndNumber, v("a", 1))
    val value = Rows.row(OneInt, v(1))
    store.put(key, value, "default")
    // Operators put the next row into the same objects.
    key.setInt(1, 2)
    value.setInt(0, 2)
    store.put(key, value, "default")
    val found = store.get(key, "default")
    val t = new Table(store, Plain)
    same("both are there", t.sorted, Seq(v("a", 1) -> v(1), v("a", 2) -> v(2)))
    value.setInt(0, 3)
    store.put(key, value, "default")
    same("a row that was got stays as it was", found.getInt(0), 2)
    commit(store)
    write(provider, 1)(t => for (number <- 1 to 100) t.put(v("a", number), v(-number)))
    same("also over the next commit", found.getInt(0), 2)
  }

  test("commit-without-a-change") { scene =>
    import scene._
    val provider = scene.provider()
    for (version <- 0L to 2L) same(s"commit of version $version", write(provider, version)(_ => ()), version + 1)
    same("no rows", rowsAt(provider, 3), Nil)
    write(provider, 3)(_.put(v("a", 0), v(1)))
    for (version <- 4L to 6L) write(provider, version)(_ => ())
    same("the rows of before, reloaded", rowsAt(scene.provider(), 7), Seq(v("a", 0) -> v(1)))
  }

  test("changes-that-cancel-out") { scene =>
    import scene._
    val provider = scene.provider()
    write(provider, 0) { t =>
      t.put(v("a", 0), v(1))
      t.remove(v("a", 0))
      t.put(v("b", 0), v(1))
    }
    write(provider, 1) { t =>
      t.remove(v("b", 0))
      t.put(v("b", 0), v(2))
      t.put(v("c", 0), v(2))
      t.remove(v("c", 0))
    }
    same("in memory", rowsAt(provider, 2), Seq(v("b", 0) -> v(2)))
    same("reloaded", rowsAt(scene.provider(), 2), Seq(v("b", 0) -> v(2)))
  }

  test("reads-after-commit") { scene =>
    import scene._
    val provider = scene.provider()
    val store = open(provider, 0)
    val t = table(store)
    t.put(v("a", 0), v(1))
    commit(store)
    allows("get")(same("the row", t.get(v("a", 0)), v(1)))
    allows("iterate")(same("the rows", t.rows, Seq(v("a", 0) -> v(1))))
    allows("exists")(same("the key", t.has(v("a", 0)), true))
  }

  test("changes-after-the-end") { scene =>
    import scene._
    val provider = scene.provider()
    def refusesChanges(store: StateStore, after: String): Unit = {
      val t = table(store)
      refuses(s"put after $after", OutOfOrder: _*)(t.put(v("a", 0), v(2)))
      refuses(s"remove after $after", OutOfOrder: _*)(t.remove(v("a", 0)))
      refuses(s"commit after $after", OutOfOrder :+ "CANNOT_WRITE_STATE_STORE": _*)(store.commit())
    }
    val committed = open(provider, 0)
    table(committed).put(v("a", 0), v(1))
    commit(committed)
    refusesChanges(committed, "commit")
    val aborted = open(provider, 1)
    aborted.abort()
    refusesChanges(aborted, "abort")
    same("what was committed", rowsAt(provider, 1), Seq(v("a", 0) -> v(1)))
  }

  test("abort-more-than-once") { scene =>
    import scene._
    val provider = scene.provider()
    write(provider, 0)(_.put(v("a", 0), v(1)))
    val store = open(provider, 1)
    table(store).put(v("a", 0), v(2))
    store.abort()
    // Spark's listener and the store's own both abort.
    allows("a second abort")(store.abort())
    val committed = open(provider, 1)
    table(committed).put(v("b", 0), v(2))
    commit(committed)
    allows("abort after commit")(committed.abort())
    same("what was committed stays", rowsAt(provider, 2), Seq(v("a", 0) -> v(1), v("b", 0) -> v(2)))
  }

  test("read-store") { scene =>
    import scene._
    val provider = scene.provider()
    write(provider, 0)(_.put(v("a", 0), v(1)))
    val store = read(provider, 1)
    same("version", store.version, 1L)
    same("id", store.id, storeId)
    same("rows", new Table(store, Plain).rows, Seq(v("a", 0) -> v(1)))
    allows("release")(store.release())
    allows("release again")(store.release())
    val empty = read(provider, 0)
    same("version 0 has no rows", new Table(empty, Plain).rows, Nil)
    empty.release()
    same("nothing was changed", rowsAt(provider, 1), Seq(v("a", 0) -> v(1)))
  }

  test("exists-and-many-at-once") { scene =>
    import scene._
    val provider = scene.provider()
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
        same("in the order of the keys", t.getAll(v("d", 0), v("c", 0), v("b", 0), v("a", 0), v("c", 0)), Seq(null, v(3), null, v(1), v(3)))
        same("of no keys", t.getAll(), Nil)
      }
    }
  }

  test("keys-without-columns") { scene =>
    import scene._
    val nothing = new StructType
    val shape = Plain.copy(key = nothing, spec = NoPrefixKeyStateEncoderSpec(nothing))
    val provider = scene.provider(shape)
    val store = open(provider, 0)
    val t = table(store, shape)
    same("absent", t.get(v()), null)
    t.put(v(), v(1))
    same("own", t.get(v()), v(1))
    commit(store)
    same("one key", store.metrics.numKeys, 1L)
    val again = scene.provider(shape)
    same("reloaded", rowsAt(again, 1, shape), Seq(v() -> v(1)))
    write(again, 1, shape)(_.remove(v()))
    same("removed, reloaded", rowsAt(scene.provider(shape), 2, shape), Nil)
  }

  test("null-type") { scene =>
    import scene._
    val nulls = schema("nothing" -> NullType)
    val keys = Plain.copy(key = nulls, spec = NoPrefixKeyStateEncoderSpec(nulls))
    val provider = scene.provider(keys)
    write(provider, 0, keys)(_.put(v(null), v(1)))
    same("as a key, reloaded", rowsAt(scene.provider(keys), 1, keys), Seq(v(null) -> v(1)))
    val values = Plain.copy(value = nulls)
    write(scene.provider(values), 0, values)(_.put(v("a", 1), v(null)))
    same("as a value, reloaded", rowsAt(scene.provider(values), 1, values), Seq(v("a", 1) -> v(null)))
  }

  test("keys-of-several-kilobytes") { scene =>
    import scene._
    val provider = scene.provider()
    val words = Seq(1000, 1024, 1025, 2048, 5000, 70000).flatMap(length => Seq("x" * length, "x" * (length - 1) + "y"))
    write(provider, 0)(t => words.foreach(word => t.put(v(word, 1), v(word.length))))
    write(provider, 1)(_.remove(v(words.head, 1)))
    val expected = words.tail.map(word => v(word, 1) -> v(word.length)).sortBy(_.toString)
    holds("in memory", rowsAt(provider, 2) == expected)()
    holds("reloaded", rowsAt(scene.provider(), 2) == expected)()
  }

  test("values-of-several-megabytes") { scene =>
    import scene._
    val shape = Plain.copy(value = OneString)
    val random = new scala.util.Random(7)
    // The first cannot be compressed, the second can.
    val large = Seq(v("a", 1) -> v(random.alphanumeric.take(3 << 20).mkString), v("b", 2) -> v("b" * (6 << 20)), v("c", 3) -> v("c"))
    val provider = scene.provider(shape)
    write(provider, 0, shape)(t => large.foreach { case (key, value) => t.put(key, value) })
    holds("in memory", rowsAt(provider, 1, shape) == large)()
    val again = scene.provider(shape)
    holds("reloaded", rowsAt(again, 1, shape) == large)()
    write(again, 1, shape)(t => t.put(v("a", 1), v("small")))
    holds("replaced, reloaded", rowsAt(scene.provider(shape), 2, shape) == Seq(v("a", 1) -> v("small")) ++ large.tail)()
  }

  test("more-changes-than-are-sent-at-once") { scene =>
    import scene._
    val shape = Plain.copy(value = OneString)
    val provider = scene.provider(shape)
    def value(number: Int, turn: Int) = v(s"$turn-" * 50 + number)
    // Some 12 MB in all: changes of one key on both sides of what was sent.
    val store = open(provider, 0)
    val t = table(store, shape)
    for (turn <- 1 to 3; number <- 1 to 20000) {
      if ((number + turn) % 5 == 0) t.remove(v("a", number)) else t.put(v("a", number), value(number, turn))
    }
    val expected = (1 to 20000).collect { case number if (number + 3) % 5 != 0 => v("a", number) -> value(number, 3) }.toMap
    holds("before commit", t.rows.toMap == expected)()
    commit(store)
    same("keys", store.metrics.numKeys, expected.size.toLong)
    holds("reloaded", rowsAt(scene.provider(shape), 1, shape).toMap == expected)()
    val dropped = open(provider, 1)
    for (number <- 1 to 40000) table(dropped, shape).put(v("b", number), value(number, 4))
    dropped.abort()
    holds("after an abort of as many", rowsAt(provider, 1, shape).toMap == expected)()
  }
}
