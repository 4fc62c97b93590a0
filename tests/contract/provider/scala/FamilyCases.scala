package io.dynastate.conformance

import Rows.v
import Shapes._
import io.dynastate.compat._

import org.apache.spark.sql.execution.streaming.state._
import org.apache.spark.sql.types.{DoubleType, LongType, StringType}

/** Column families: made, removed, made again, independently in every version. */
final class FamilyCases(scene: Scene) extends Cases {
  import scene._
  import Need.Families

  private val A = Plain.named("a")
  private val B = Plain.named("b")
  private val Missing = "STATE_STORE_UNSUPPORTED_OPERATION_ON_MISSING_COLUMN_FAMILY"

  testWithAppends("families-are-apart", Families) {
    val store = open(provider, 0)
    val (a, b, default) = (table(store, A), table(store, B), table(store))
    a.put(v("k", 0), v(1))
    b.put(v("k", 0), v(2))
    default.put(v("k", 0), v(3))
    b.put(v("only", 0), v(4))
    same("of a", a.sorted, Seq(v("k", 0) -> v(1)))
    same("of b", b.sorted, Seq(v("k", 0) -> v(2), v("only", 0) -> v(4)))
    same("of default", default.sorted, Seq(v("k", 0) -> v(3)))
    a.remove(v("k", 0))
    same("removed in a only", Seq(a.get(v("k", 0)), b.get(v("k", 0)), default.get(v("k", 0))), Seq(null, v(2), v(3)))
    commit(store)
    same("keys of all", store.metrics.numKeys, 3L)
    val other = fresh()
    same("a reloaded", rowsAt(other, 1, A), Nil)
    same("b reloaded", rowsAt(other, 1, B), Seq(v("k", 0) -> v(2), v("only", 0) -> v(4)))
    same("default reloaded", rowsAt(other, 1), Seq(v("k", 0) -> v(3)))
  }

  test("values-of-an-earlier-schema", Families) {
    val schemas = Seq(OneInt, schema("more" -> StringType, "value" -> LongType), schema("value" -> DoubleType))
    /** A provider of the run in which a schema is the newest, and its families with single values and with lists. */
    def of(newest: Int): (StateStoreProvider, Shape, Shape) = {
      val provider = schemasOf(Seq(A, B, Plain).map(_.name), A.key, schemas.take(newest + 1))
      val conf = Map("spark.sql.streaming.stateStore.encodingFormat" -> "avro")
      (fresh(conf = conf, schemas = provider), A.copy(value = schemas(newest)),
        B.copy(value = schemas(newest)).lists)
    }
    val (first, a0, b0) = of(0)
    val store = open(first, 0)
    for (key <- 0 to 2) table(store, a0).put(v("k", key), v(key))
    table(store, b0).putList(v("k", 0), v(1), v(null))
    commit(store)
    val (second, a1, b1) = of(1)
    val wider = open(second, 1)
    same("a value of the first", table(wider, a1).get(v("k", 0)), v(null, 0L))
    table(wider, a1).put(v("k", 1), v("new", 1L << 40))
    table(wider, b1).merge(v("k", 0), v("new", 2L))
    same("both", table(wider, a1).sorted,
      Seq(v("k", 0) -> v(null, 0L), v("k", 1) -> v("new", 1L << 40), v("k", 2) -> v(null, 2L)))
    same("a list of both", table(wider, b1).list(v("k", 0)), Seq(v(null, 1L), v(null, null), v("new", 2L)))
    commit(wider)
    val (third, a2, b2) = of(2)
    val other = open(third, 2)
    same("all three", table(other, a2).sorted,
      Seq(v("k", 0) -> v(0.0), v("k", 1) -> v((1L << 40).toDouble), v("k", 2) -> v(2.0)))
    same("values of lists", table(other, b2).allValues.map(_._2), Seq(v(1.0), v(null), v(2.0)))
    table(other, a2).put(v("k", 2), v(0.5))
    table(other, a2).remove(v("k", 1))
    commit(other)
    val (fourth, _, _) = of(2)
    same("reloaded", rowsAt(fourth, 3, a2), Seq(v("k", 0) -> v(0.0), v("k", 2) -> v(0.5)))
  }

  testWithAppends("a-family-is-made-once", Families) {
    write(provider, 0, A)(_.put(v("k", 0), v(1)))
    val store = open(provider, 1)
    for (_ <- 1 to 3) same("still there", table(store, A).sorted, Seq(v("k", 0) -> v(1)))
    table(store, A).put(v("k", 1), v(2))
    same("made again after a put", table(store, A).sorted, Seq(v("k", 0) -> v(1), v("k", 1) -> v(2)))
    commit(store)
    same("reloaded", rowsAt(fresh(), 2, A), Seq(v("k", 0) -> v(1), v("k", 1) -> v(2)))
  }

  test("names-of-families", Families) {
    val store = open(fresh(), 0)
    for (name <- Seq("", " ", " a", "a ", "default")) {
      refuses(s"made as '$name'", "STATE_STORE_CANNOT_USE_COLUMN_FAMILY_WITH_INVALID_NAME")(
        store.createColFamilyIfAbsent(name, A.key, A.value, A.spec))
      refuses(s"removed as '$name'", "STATE_STORE_CANNOT_USE_COLUMN_FAMILY_WITH_INVALID_NAME")(
        store.removeColFamilyIfExists(name))
    }
    refuses("made as '$a'", "STATE_STORE_CANNOT_CREATE_COLUMN_FAMILY_WITH_RESERVED_CHARS")(
      store.createColFamilyIfAbsent("$a", A.key, A.value, A.spec))
    allows("made as '$a' by Spark itself")(store.createColFamilyIfAbsent("$a", A.key, A.value, A.spec,
        isInternal = true))
    for (name <- Seq("a.b", "a b", "ü", "a$", "x" * 200))
      allows(s"made as '$name'")(store.createColFamilyIfAbsent(name, A.key, A.value, A.spec))
    store.abort()
  }

  test("an-unknown-family", Families) {
    val store = open(fresh(), 0)
    val t = new Table(store, Prefixed.named("unknown").lists)
    lazy val ranged = new Table(store, Shapes.TimeFirst.named("unknown").lists)
    val key = v("k", 0)
    val calls: Seq[(String, () => Any)] = Seq("get" -> (() => t.get(key)), "keyExists" -> (() => t.has(key)),
      "multiGet" -> (() => t.getAll(key)), "valuesIterator" -> (() => t.list(key)), "put" -> (() => t.put(key, v(1))),
      "putList" -> (() => t.putList(key, v(1))), "merge" -> (() => t.merge(key, v(1))),
      "mergeList" -> (() => t.mergeList(key, v(1))), "remove" -> (() => t.remove(key)), "iterator" -> (() => t.rows),
      "iteratorWithMultiValues" -> (() => t.allValues), "prefixScan" -> (() => t.prefixed(v("k"))),
      "prefixScanWithMultiValues" -> (() => t.allPrefixed(v("k"))), "deleteRange" -> (() => t.deleteRange(key, key)),
      "rangeScan" -> (() => ranged.range(None, None)),
      "rangeScanWithMultiValues" -> (() => ranged.allInRange(None, None)))
    calls.foreach { case (name, call) => refuses(name, Missing)(call()) }
    store.abort()
  }

  testWithAppends("a-family-that-was-removed", Families) {
    write(provider, 0, A)(_.put(v("k", 0), v(1)))
    val store = open(provider, 1)
    val a = table(store, A)
    same("removed", store.removeColFamilyIfExists("a"), true)
    same("removed again", store.removeColFamilyIfExists("a"), false)
    sameFamilies("without its name", store, Set("default"))
    refuses("get in the same store", Missing)(a.get(v("k", 0)))
    refuses("put in the same store", Missing)(a.put(v("k", 0), v(2)))
    refuses("iterate in the same store", Missing)(a.rows)
    commit(store)
    same("no keys", store.metrics.numKeys, 0L)
    val next = open(provider, 2)
    refuses("get in the next version", Missing)(known(next, A).get(v("k", 0)))
    refuses("put in the next version", Missing)(known(next, A).put(v("k", 0), v(2)))
    next.abort()
    val last = open(fresh(), 2)
    refuses("get by another instance", Missing)(known(last, A).get(v("k", 0)))
    sameFamilies("without its name, by another instance", last, Set("default"))
    last.abort()
  }

  testWithAppends("families-of-an-aborted-attempt", Families) {
    write(provider, 0)(_.put(v("k", 0), v(0)))
    val attempt = open(provider, 1)
    table(attempt, A).put(v("k", 0), v(1))
    table(attempt, B)
    attempt.abort()
    val store = open(provider, 1)
    sameFamilies("names", store, Set("default"))
    refuses("get in the next attempt", Missing)(known(store, A).get(v("k", 0)))
    refuses("put in the next attempt", Missing)(known(store, A).put(v("k", 0), v(1)))
    // In another order than before: neither must get the other's rows.
    val b = table(store, B)
    val a = table(store, A)
    same("made there, it is empty", a.sorted, Nil)
    a.put(v("k", 0), v(1))
    b.put(v("k", 0), v(2))
    same("a", a.sorted, Seq(v("k", 0) -> v(1)))
    same("b", b.sorted, Seq(v("k", 0) -> v(2)))
    commit(store)
    val other = fresh()
    same("a reloaded", rowsAt(other, 2, A), Seq(v("k", 0) -> v(1)))
    same("b reloaded", rowsAt(other, 2, B), Seq(v("k", 0) -> v(2)))
  }

  testWithAppends("a-family-removed-and-made-again", Families) {
    write(provider, 0, A) { t =>
      t.put(v("k", 0), v(1))
      t.put(v("k", 1), v(1))
    }
    val store = open(provider, 1)
    table(store, A).put(v("k", 2), v(1))
    table(store, B).put(v("k", 0), v(2))
    store.removeColFamilyIfExists("a")
    val family = table(store, A)
    same("it is empty", family.sorted, Nil)
    family.put(v("k", 1), v(3))
    same("it has what was put since", family.sorted, Seq(v("k", 1) -> v(3)))
    commit(store)
    same("the other family is as it was", rowsAt(provider, 2, B), Seq(v("k", 0) -> v(2)))
    same("in the next version", rowsAt(provider, 2, A), Seq(v("k", 1) -> v(3)))
    same("reloaded", rowsAt(fresh(), 2, A), Seq(v("k", 1) -> v(3)))
    same("in the version before, reloaded", rowsAt(fresh(), 1, A), Seq(v("k", 0) -> v(1), v("k", 1) -> v(1)))
  }

  testWithAppends("a-family-removed-and-made-again-later", Families) {
    write(provider, 0, A)(t => for (number <- 1 to 50) t.put(v("k", number), v(number)))
    val store = open(provider, 1)
    store.removeColFamilyIfExists("a")
    commit(store)
    write(provider, 2, B)(_.put(v("k", 0), v(2)))
    write(provider, 3, A)(_.put(v("new", 0), v(4)))
    val other = fresh()
    same("a reloaded", rowsAt(other, 4, A), Seq(v("new", 0) -> v(4)))
    same("b reloaded", rowsAt(other, 4, B), Seq(v("k", 0) -> v(2)))
    same("the first version, reloaded", rowsAt(fresh(), 1, A).length, 50)
    val third = open(other, 4)
    commit(third)
    same("keys", third.metrics.numKeys, 2L)
  }

  testWithAppends("removal-of-a-family-is-aborted", Families) {
    write(provider, 0, A)(_.put(v("k", 0), v(1)))
    val store = open(provider, 1)
    store.removeColFamilyIfExists("a")
    store.abort()
    same("after abort", rowsAt(provider, 1, A), Seq(v("k", 0) -> v(1)))
    val fourth = open(provider, 1)
    fourth.removeColFamilyIfExists("a")
    commit(fourth)
    // The batch is run again from its base, which has the family.
    val retry = open(provider, 1)
    sameFamilies("names at the base", retry, Set("default", "a"))
    same("rows at the base", table(retry, A).sorted, Seq(v("k", 0) -> v(1)))
    commit(retry)
    same("after the retry", rowsAt(fresh(), 2, A), Seq(v("k", 0) -> v(1)))
  }

  test("a-family-made-again-with-other-keys", Families) {
    write(provider, 0, A)(_.put(v("k", 0), v(1)))
    val store = open(provider, 1)
    store.removeColFamilyIfExists("a")
    val other = ranged(org.apache.spark.sql.types.LongType).named("a").copy(value = OneString)
    val t = table(store, other)
    for (number <- Seq(5L, -5L, 0L)) t.put(v(number, "x"), v(s"n$number"))
    same("in order", t.rows, Seq(-5L, 0L, 5L).map(n => v(n, "x") -> v(s"n$n")))
    commit(store)
    same("reloaded", look(fresh(), 2, other)(_.rows), Seq(-5L, 0L, 5L).map(n => v(n, "x") -> v(s"n$n")))
  }

  testWithAppends("names-of-all-families", Families) {
    val store = open(provider, 0)
    same("removal of one that is missing", store.removeColFamilyIfExists("unknown"), false)
    sameFamilies("at first", store, Set("default"))
    table(store, A)
    table(store, B).put(v("k", 0), v(1))
    sameFamilies("after two were made", store, Set("default", "a", "b"))
    commit(store)
    look(fresh(), 1)(t => sameFamilies("by another instance", t.store, Set("default", "a", "b")))
    val reader = read(fresh(), 1)
    sameFamilies("by a reader", reader, Set("default", "a", "b"))
    reader.release()
  }

  testWithAppends("many-families", Families) {
    val shapes = (1 to 40).map(number => Plain.named(s"f$number"))
    val store = open(provider, 0)
    shapes.zipWithIndex.foreach { case (shape, at) => table(store, shape).put(v("k", 0), v(at)) }
    commit(store)
    // Made in another order by the next instance: families are identified by name, not by order.
    val other = fresh()
    val next = open(other, 1)
    val matches = shapes.zipWithIndex.reverse.map { case (shape, at) => table(next, shape).get(v("k", 0)) == v(at) }
    same("each has its row", matches.distinct, Seq(true))
    next.removeColFamilyIfExists("f7")
    table(next, Plain.named("f41")).put(v("k", 0), v(41))
    commit(next)
    val last = fresh()
    same("one that was added", rowsAt(last, 2, Plain.named("f41")), Seq(v("k", 0) -> v(41)))
    same("one that was removed", rowsAt(last, 2, Plain.named("f7")), Nil)
    same("one that stayed", rowsAt(last, 2, Plain.named("f40")), Seq(v("k", 0) -> v(39)))
  }

  test("families-off") {
    val store = open(fresh(), 0)
    val kinds = Seq("UNSUPPORTED_FEATURE.STATE_STORE", "STATE_STORE_UNSUPPORTED_OPERATION")
    refuses("make one", kinds: _*)(store.createColFamilyIfAbsent("a", A.key, A.value, A.spec))
    refuses("remove one", kinds: _*)(store.removeColFamilyIfExists("a"))
    store.abort()
    refuses("lists need them", kinds :+ "IllegalArgumentException": _*)(fresh(Plain.lists, multiple = true))
  }

  testWithAppends("internal-families-are-not-counted", Families) {
    val family = Plain.named("$timers").copy(internal = true)
    def fill(version: Long) = {
      val store = open(provider, version)
      table(store, family).put(v("t", version.toInt), v(1))
      table(store, family).put(v("u", version.toInt), v(1))
      table(store, A).put(v("k", version.toInt), v(1))
      commit(store)
      store.metrics.numKeys
    }
    same("the first version", fill(0), 1L)
    same("the second version", fill(1), 2L)
    val store = open(fresh(), 2)
    table(store, family)
    commit(store)
    same("by another instance", store.metrics.numKeys, 2L)
  }

  test("a-family-registered-by-a-reader", Families) {
    write(fresh(), 0, A)(_.put(v("k", 0), v(1)))
    // As in the state reader: it registers on one store and reads from the next.
    val first = read(provider, 1)
    first.registerColFamily("a", A.key, A.value, A.spec)
    first.release()
    val second = read(provider, 1)
    same("rows", known(second, A).rows, Seq(v("k", 0) -> v(1)))
    second.release()
  }

  testWithAppends("a-family-of-a-later-version", Families) {
    write(provider, 0)(_.put(v("k", 0), v(1)))
    write(provider, 1, A)(_.put(v("k", 0), v(2)))
    val store = open(provider, 1)
    sameFamilies("names of the version before", store, Set("default"))
    refuses("get there", Missing)(known(store, A).get(v("k", 0)))
    same("made there, it is empty", table(store, A).sorted, Nil)
    store.abort()
    same("in its own version", rowsAt(provider, 2, A), Seq(v("k", 0) -> v(2)))
  }
}
