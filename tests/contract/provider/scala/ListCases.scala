package io.dynastate.conformance

import Rows.{v, Values}
import Shapes._
import io.dynastate.compat._

import org.apache.spark.sql.types._

/** Several values of one key: list state, and the newest state format of joins. */
final class ListCases(scene: Scene) extends Cases {
  import scene._
  import Need.Families

  private val Lists = Plain.named("lists").lists
  private val Key = v("k", 1)

  private def ints(values: Int*): Seq[Values] = values.map(v(_))

  test("put-list", Families) {
    val store = open(provider, 0)
    val t = table(store, Lists)
    same("absent", t.list(Key), Nil)
    t.putList(Key, ints(3, 1, 2, 1): _*)
    same("in order, and as often as put", t.list(Key), ints(3, 1, 2, 1))
    same("get is the first", t.get(Key), v(3))
    same("it exists", t.has(Key), true)
    t.putList(Key, ints(7, 8): _*)
    same("replaced", t.list(Key), ints(7, 8))
    t.putList(v("other", 1), v(5))
    same("of one", t.list(v("other", 1)), ints(5))
    commit(store)
    same("a list is one key", store.metrics.numKeys, 2L)
    same("reloaded", look(fresh(), 1, Lists)(_.list(Key)), ints(7, 8))
    write(provider, 1, Lists) { t =>
      t.put(Key, v(9))
      same("put in place of two", t.list(Key), ints(9))
      t.put(v("new", 1), v(4))
      same("put of a new key", t.list(v("new", 1)), ints(4))
    }
    same("what was put, reloaded", look(fresh(), 2, Lists)(t => t.list(Key) ++ t.list(v("new", 1))), ints(9, 4))
  }

  test("merge", Families) {
    val store = open(provider, 0)
    val t = table(store, Lists)
    t.merge(Key, v(1))
    same("the first", t.list(Key), ints(1))
    t.merge(Key, v(2))
    t.mergeList(Key, ints(3, 4): _*)
    t.merge(Key, v(5))
    same("in order", t.list(Key), ints(1, 2, 3, 4, 5))
    t.put(v("p", 1), v(1))
    t.merge(v("p", 1), v(2))
    same("after a put", t.list(v("p", 1)), ints(1, 2))
    t.mergeList(v("m", 1), ints(1, 2): _*)
    same("several at once make a list", t.list(v("m", 1)), ints(1, 2))
    commit(store)
    same("keys", store.metrics.numKeys, 3L)
    same("reloaded", look(fresh(), 1, Lists)(t => t.list(Key) ++ t.list(v("p", 1))), ints(1, 2, 3, 4, 5, 1, 2))
  }

  test("merge-after-remove", Families) {
    write(provider, 0, Lists)(_.putList(Key, ints(1, 2): _*))
    val store = open(provider, 1)
    val t = table(store, Lists)
    t.merge(Key, v(3))
    t.remove(Key)
    same("removed", t.list(Key), Nil)
    t.merge(Key, v(4))
    t.merge(Key, v(5))
    same("a new list", t.list(Key), ints(4, 5))
    commit(store)
    same("in memory", look(provider, 2, Lists)(_.list(Key)), ints(4, 5))
    same("reloaded", look(fresh(), 2, Lists)(_.list(Key)), ints(4, 5))
    write(provider, 2, Lists)(_.remove(Key))
    write(provider, 3, Lists)(_.merge(Key, v(6)))
    same("removed in the version before, reloaded", look(fresh(), 4, Lists)(_.list(Key)), ints(6))
  }

  test("merge-over-versions", Families) {
    // RocksDB counts keys, and reads the whole list at every merge: more would take minutes.
    def made(version: Int) = ints(version * 100 until version * 100 + 80: _*)
    for (version <- 0 until 12) {
      write(provider, version, Lists) { t =>
        made(version).drop(2).foreach(t.merge(Key, _))
        t.mergeList(Key, made(version).take(2): _*)
      }
    }
    def upTo(version: Int) = (0 until version).flatMap(each => made(each).drop(2) ++ made(each).take(2))
    same("in memory", look(provider, 12, Lists)(_.list(Key)), upTo(12))
    same("reloaded", look(fresh(), 12, Lists)(_.list(Key)), upTo(12))
    same("an older version, reloaded", look(fresh(), 5, Lists)(_.list(Key)), upTo(5))
    // The rest is loaded onto an older version in memory.
    val other = fresh()
    same("an older version first", look(other, 7, Lists)(_.list(Key)), upTo(7))
    same("then the newest", look(other, 12, Lists)(_.list(Key)), upTo(12))
  }

  test("merge-is-aborted", Families) {
    write(provider, 0, Lists)(_.putList(Key, ints(1, 2): _*))
    look(provider, 1, Lists) { t =>
      t.merge(Key, v(3))
      t.merge(v("new", 1), v(1))
      same("own", t.list(Key), ints(1, 2, 3))
    }
    look(provider, 1, Lists) { t =>
      same("after abort", t.list(Key), ints(1, 2))
      same("a list that was never", t.list(v("new", 1)), Nil)
    }
    write(provider, 1, Lists)(_.merge(Key, v(4)))
    // The task failed after its commit, and is retried from the same base.
    write(provider, 1, Lists)(_.merge(Key, v(5)))
    same("a retry appends to the base", look(provider, 2, Lists)(_.list(Key)), ints(1, 2, 5))
    same("a retry, reloaded", look(fresh(), 2, Lists)(_.list(Key)), ints(1, 2, 5))
  }

  test("a-list-is-replaced", Families) {
    write(provider, 0, Lists)(_.putList(Key, ints(1, 2, 3, 4): _*))
    // As list state removes expired values: the first remaining one is put, the others are merged.
    write(provider, 1, Lists) { t =>
      val rest = t.list(Key).filter(_.head.asInstanceOf[Int] % 2 == 0)
      t.put(Key, rest.head)
      rest.tail.foreach(t.merge(Key, _))
    }
    write(provider, 2, Lists)(_.merge(Key, v(5)))
    same("reloaded", look(fresh(), 3, Lists)(_.list(Key)), ints(2, 4, 5))
  }

  test("values-that-hold-separators", Families) {
    val shape = Lists.copy(value = OneString)
    // RocksDB joins values with a comma, or with nothing.
    val texts = Seq(",", "", ",,", "a,b", "\u0000", "x" * 100, null).map(v(_))
    write(provider, 0, shape)(t => texts.foreach(t.merge(Key, _)))
    write(provider, 1, shape)(_.mergeList(Key, texts: _*))
    same("reloaded", look(fresh(), 2, shape)(_.list(Key)), texts ++ texts)
  }

  test("all-values-of-all-keys", Families) {
    val lists = Map(v("a", 1) -> Seq(1, 2, 3), v("a", 2) -> Seq(4), v("b", 1) -> Seq(5, 6))
    write(provider, 0, Lists)(t =>
      lists.foreach { case (key, values) => values.foreach(value => t.merge(key, v(value))) })
    def grouped(pairs: Seq[(Values, Values)]) = pairs.groupBy(_._1).map { case (key, rows) =>
      key -> rows.map(_._2.head)
    }
    same("reloaded", look(fresh(), 1, Lists)(t => grouped(t.allValues)), lists)
    look(provider, 1, Lists) { t =>
      t.merge(v("a", 2), v(44))
      t.remove(v("b", 1))
      t.putList(v("c", 1), ints(7, 8): _*)
      same("with own changes", grouped(t.allValues),
        Map(v("a", 1) -> Seq(1, 2, 3), v("a", 2) -> Seq(4, 44), v("c", 1) -> Seq(7, 8)))
    }
  }

  test("all-values-of-a-prefix", Families) {
    val shape = Prefixed.named("lists").lists
    write(provider, 0, shape) { t =>
      for (word <- Seq("a", "aa", "b"); number <- 1 to 2; value <- 1 to 3)
        t.merge(v(word, number), v(number * 10 + value))
    }
    look(fresh(), 1, shape) { t =>
      val pairs = t.allPrefixed(v("a"))
      same("each with its values", pairs.groupBy(_._1).map { case (key, rows) => key -> rows.map(_._2.head) },
        Map(v("a", 1) -> Seq(11, 12, 13), v("a", 2) -> Seq(21, 22, 23)))
      same("of no key", t.allPrefixed(v("c")), Nil)
    }
  }

  test("all-values-of-a-range", Families) {
    val shape = ranged(LongType).named("lists").lists
    write(provider, 0, shape)(t =>
      for (number <- Seq(3L, -2L, 0L, 5L); value <- 1 to 2) t.merge(v(number, ""), v(value)))
    write(provider, 1, shape) { t =>
      t.merge(v(0L, ""), v(3))
      t.remove(v(3L, ""))
    }
    def pairs(t: Table) = t.allInRange(Some(v(-1L, "")), None).map { case (key, value) => (key.head, value.head) }
    val expected = Seq(0L -> 1, 0L -> 2, 0L -> 3, 5L -> 1, 5L -> 2)
    same("in memory", look(provider, 2, shape)(pairs), expected)
    same("reloaded", look(fresh(), 2, shape)(pairs), expected)
  }

  test("lists-iterated-side-by-side", Families) {
    val store = open(provider, 0)
    val t = table(store, Prefixed.named("lists").lists)
    val pairs = for (word <- Seq("a", "b"); number <- 1 to 3; value <- 1 to 2)
      yield v(word, number) -> v(10 * number + value)
    pairs.foreach { case (key, value) => t.merge(key, value) }
    // A pass over all rows for each of them.
    val outer = store.iteratorWithMultiValues(t.shape.name)
    same("keys and values",
      outer.map(t.pairOf).map { pair => same("all", t.allValues.size, pairs.size); pair }.toList.sortBy(_.toString),
      pairs.sortBy(_.toString))
    store.abort()
  }
  test("lists-of-keys-with-a-time", Families) {
    // The two families of a join side: values by key and time, and an index by time and key.
    val values = TimeLast.named("keyWithTsToValues").lists
    val index =
      TimeFirst.named("tsWithKey").copy(value = schema("nothing" -> NullType), multiple = true, internal = true)
    val store = open(provider, 0)
    val (t, i) = (table(store, values), table(store, index))
    for (time <- Seq(30L, 10L, 20L, 10L); word <- Seq("b", "a")) {
      t.merge(v(word, time), v(time.toInt))
      i.merge(v(word, time), v(null))
    }
    commit(store)
    same("keys that are not internal", store.metrics.numKeys, 6L)
    val next = open(provider, 1)
    val (t1, i1) = (table(next, values), table(next, index))
    same("values of a key by time", t1.allPrefixed(v("a")).map { case (key, value) => (key(1), value.head) },
      Seq(10L -> 10, 10L -> 10, 20L -> 20, 30L -> 30))
    same("values in an interval", t1.allInRange(Some(v("a", 10L)), Some(v("a", 30L))).map(_._2.head), Seq(10, 10, 20))
    val pairs = i1.allInRange(None, Some(v("", 20L)))
    same("what expired", pairs.map(_._1), Seq("a", "a", "b", "b").map(v(_, 10L)))
    pairs.map(_._1).distinct.foreach { key =>
      t1.remove(key)
      i1.remove(key)
    }
    commit(next)
    val other = fresh()
    same("what is left, reloaded", look(other, 2, index)(_.allValues.map(_._1(1)).distinct), Seq(20L, 30L))
    same("values of a key, reloaded", look(other, 2, values)(_.allPrefixed(v("b")).map(_._2.head)), Seq(20, 30))
  }

  test("list-calls-on-single-values", Families) {
    val store = open(fresh(), 0)
    val t = table(store, Prefixed.named("single"))
    val kinds = Seq("IllegalStateException", "IllegalArgumentException", "UnsupportedOperationException",
      "STATE_STORE_UNSUPPORTED_OPERATION")
    refuses("merge", kinds: _*)(t.merge(Key, v(1)))
    refuses("mergeList", kinds: _*)(t.mergeList(Key, v(1)))
    refuses("valuesIterator", kinds: _*)(t.list(Key))
    same("nothing was changed", t.rows, Nil)
    // An older Spark puts the first value, and refuses the others.
    refuses("putList", kinds.filter(_ != "UnsupportedOperationException"): _*)(t.putList(Key, v(1), v(2)))
    val times = table(store, TimeFirst.named("times"))
    refuses("iteratorWithMultiValues", kinds: _*)(t.allValues)
    refuses("prefixScanWithMultiValues", kinds: _*)(t.allPrefixed(v("k")))
    refuses("rangeScanWithMultiValues", kinds: _*)(times.allInRange(None, None))
    store.abort()
  }

  test("nulls-in-lists-are-refused", Families) {
    val store = open(fresh(), 0)
    val t = table(store, Lists)
    val (key, value) = (t.keyRow(Key), t.valueRow(v(1)))
    t.put(Key, v(1))
    refuses("putList of no array", "IllegalArgumentException")(store.putList(key, null, "lists"))
    refuses("putList with a null", "IllegalArgumentException")(store.putList(key, Array(value, null), "lists"))
    refuses("merge of null", "IllegalArgumentException")(store.merge(key, null, "lists"))
    refuses("mergeList of no array", "IllegalArgumentException")(store.mergeList(key, null, "lists"))
    refuses("mergeList with a null", "IllegalArgumentException")(store.mergeList(key, Array(value, null), "lists"))
    refuses("merge with no key", "IllegalStateException")(store.merge(null, value, "lists"))
    same("nothing was changed", t.list(Key), ints(1))
    store.abort()
  }

  test("empty-lists", Families) {
    val store = open(provider, 0)
    val t = table(store, Lists)
    t.mergeList(Key)
    same("nothing appended to nothing", t.list(Key), Nil)
    same("it is no key", t.has(Key), false)
    t.putList(Key, ints(1, 2): _*)
    t.mergeList(Key)
    same("nothing appended", t.list(Key), ints(1, 2))
    t.putList(Key)
    same("nothing put in place of two", t.list(Key), Nil)
    same("it is no key any more", t.has(Key), false)
    commit(store)
    same("keys", store.metrics.numKeys, 0L)
  }

  test("long-values-in-lists", Families) {
    val shape = Lists.copy(value = OneString)
    val random = new scala.util.Random(11)
    // 9 MB: changes are sent several times within the batch, and lists continue after it.
    val texts = (1 to 9).map(_ => v(random.alphanumeric.take(1 << 20).mkString))
    val store = open(provider, 0)
    val t = table(store, shape)
    texts.zipWithIndex.foreach { case (text, at) => t.merge(v("k", at % 2), text) }
    holds("own", t.list(v("k", 0)) == texts.indices.filter(_ % 2 == 0).map(texts))()
    commit(store)
    write(provider, 1, shape)(_.merge(v("k", 1), v("last")))
    look(fresh(), 2, shape) { t =>
      holds("reloaded", t.list(v("k", 0)) == texts.indices.filter(_ % 2 == 0).map(texts))()
      holds("continued, reloaded", t.list(v("k", 1)) == texts.indices.filter(_ % 2 == 1).map(texts) :+ v("last"))()
    }
  }

  test("changing-a-list-while-reading-it", Families) {
    write(provider, 0, Lists)(_.putList(Key, ints(1, 2, 3): _*))
    look(provider, 1, Lists) { t =>
      val values = t.store.valuesIterator(t.keyRow(Key), "lists")
      val numbers = values.map { value =>
        val number = value.getInt(0)
        t.merge(Key, v(number * 10))
        if (number == 2) t.put(v("other", 1), v(number))
        number
      }.toList
      same("as it was when asked for", numbers, Seq(1, 2, 3))
      same("afterwards", t.list(Key), ints(1, 2, 3, 10, 20, 30))
    }
  }

  test("the-default-family-with-lists", Families) {
    val shape = Plain.lists
    val provider = fresh(shape, multiple = true)
    write(provider, 0, shape)(_.mergeList(Key, ints(1, 2): _*))
    write(provider, 1, shape)(_.merge(Key, v(3)))
    same("reloaded", look(fresh(shape, multiple = true), 2, shape)(_.list(Key)), ints(1, 2, 3))
  }
}
