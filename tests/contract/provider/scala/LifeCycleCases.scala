package io.dynastate.conformance

import java.util.concurrent.{Callable, Executors, TimeUnit}

import Rows.v
import Shapes._
import io.dynastate.compat._

import org.apache.spark.sql.execution.streaming.state._

/** A provider's life cycle: metrics, maintenance, threads, close. */
final class LifeCycleCases(scene: Scene) extends Cases {
  import scene._
  test("reported-metrics-are-supported") {
    // The driver asks an instance that was never initialised.
    val plain = StateStoreProvider.create(subject.providerClass)
    val names = plain.supportedCustomMetrics.map(_.name)
    same("no name twice", names.distinct.length, names.length)
    holds("each has a description", plain.supportedCustomMetrics.forall(_.desc.nonEmpty))()
    allows("instance metrics before init")(plain.supportedInstanceMetrics.length)
    val store = open(provider, 0)
    table(store).put(v("a", 0), v(1))
    commit(store)
    val supported = provider.supportedCustomMetrics.toSet
    same("custom metrics", store.metrics.customMetrics.keySet.diff(supported), Set.empty)
    holds("some are reported", store.metrics.customMetrics.nonEmpty)()
    val instances = provider.supportedInstanceMetrics.map(_.getClass).toSet
    same("instance metrics", store.metrics.instanceMetrics.keys.map(_.getClass).toSet.diff(instances), Set.empty)
    val second = open(fresh(), 1)
    commit(second)
    same("custom metrics after a load", second.metrics.customMetrics.keySet.diff(supported), Set.empty)
    holds("none is negative", second.metrics.customMetrics.values.forall(_ >= 0))(
      s"${second.metrics.customMetrics}")
  }

  test("metrics-at-any-time") {
    write(provider, 0)(_.put(v("a", 0), v(1)))
    val attempt = open(provider, 1)
    attempt.abort()
    allows("after abort")(attempt.metrics)
    val store = open(provider, 1)
    allows("before commit")(store.metrics)
    store.abort()
  }

  testWithAppends("both-kinds-of-maintenance-at-once") {
    val conf =
      Map("spark.sql.streaming.stateStore.minDeltasForSnapshot" -> "1", "spark.sql.streaming.minBatchesToRetain" -> "2")
    val provider = fresh(conf = conf)
    val pool = Executors.newFixedThreadPool(2)
    try {
      val stop = new java.util.concurrent.atomic.AtomicBoolean
      def always(what: () => Unit): Callable[Unit] = () => while (!stop.get) { what(); Thread.sleep(5) }
      val futures = Seq(pool.submit(always(() => provider.doSnapshotMaintenance())),
        pool.submit(always(() => provider.doCleanupMaintenance())))
      for (version <- 0 until 12)
        write(provider, version)(t => for (number <- 1 to 20) t.put(v("a", number), v(version)))
      stop.set(true)
      futures.foreach(each => allows("neither fails")(each.get(30, TimeUnit.SECONDS)))
    } finally pool.shutdownNow()
    allows("both, one after the other")(provider.doMaintenance())
    holds("a snapshot was made", newestSnapshot > 0)()
    same("rows", rowsAt(provider, 12).map(_._2.head).distinct, Seq(11))
    same("rows, reloaded", rowsAt(fresh(conf = conf), 12).map(_._2.head).distinct, Seq(11))
    same("the version before, reloaded", rowsAt(fresh(conf = conf), 11).map(_._2.head).distinct, Seq(10))
  }

  testWithAppends("snapshots-where-little-changes") {
    val shape = Plain.copy(value = OneString)
    val conf = Map("spark.sql.streaming.stateStore.minDeltasForSnapshot" -> "1")
    val random = new scala.util.Random(17)
    def text(length: Int) = v(random.alphanumeric.take(length).mkString)
    val provider = fresh(shape, conf = conf)
    var expected = (0 until 1000).map(number => v("a", number) -> text(2000)).toMap
    write(provider, 0, shape)(t => expected.foreach { case (key, value) => t.put(key, value) })
    provider.doMaintenance()
    // Updates of one row: the changes outgrow the snapshot, most of which is unchanged.
    for (version <- 1 to 12) {
      val (key, hot) = (v("a", version), v("hot", 0) -> text(300000))
      expected = expected - key + hot
      write(provider, version, shape) { t =>
        t.remove(key)
        t.put(hot._1, hot._2)
      }
      provider.doMaintenance()
      if (version % 4 == 0) {
        holds(s"version ${version + 1}, reloaded",
          rowsAt(fresh(shape, conf = conf), version + 1, shape).toMap == expected)()
      }
    }
    holds("a snapshot was made after the first", newestSnapshot > 1)(s"the newest is of version $newestSnapshot")
    val other = fresh(shape, conf = conf)
    write(other, 13, shape)(_.put(v("b", 0), v("last")))
    other.doMaintenance()
    holds("the next version, reloaded",
      rowsAt(fresh(shape, conf = conf), 14, shape).toMap == expected + (v("b", 0) -> v("last")))()
  }

  test("maintenance-with-nothing-to-do") {
    allows("before the first store") {
      provider.doSnapshotMaintenance()
      provider.doCleanupMaintenance()
      provider.doMaintenance()
    }
    write(provider, 0)(_ => ())
    allows("after an empty commit")(provider.doMaintenance())
    same("rows", rowsAt(provider, 1), Nil)
  }

  testWithAppends("close-more-than-once") {
    write(provider, 0)(_.put(v("a", 0), v(1)))
    provider.close()
    allows("a second close")(provider.close())
    same("nothing is lost", rowsAt(fresh(), 1), Seq(v("a", 0) -> v(1)))
    allows("close of one never used")(fresh().close())
  }

  testWithAppends("closed-beside-another-instance") {
    val (first, second) = (fresh(), fresh())
    write(first, 0)(_.put(v("a", 0), v(1)))
    val store = open(second, 1)
    table(store).put(v("b", 0), v(2))
    first.close()
    commit(store)
    same("the other goes on", rowsAt(second, 2), Seq(v("a", 0) -> v(1), v("b", 0) -> v(2)))
  }

  testWithAppends("a-store-is-used-by-another-thread") {
    write(provider, 0)(_.put(v("a", 0), v(1)))
    val store = open(provider, 1)
    val pool = Executors.newSingleThreadExecutor()
    try {
      // PySpark's state server: its thread reads and writes, the task's thread commits.
      val t = table(store)
      val task: Callable[Any] = () => { t.put(v("b", 0), v(2)); t.get(v("a", 0)) }
      val value = pool.submit(task).get(30, TimeUnit.SECONDS)
      same("read there", value, v(1))
    } finally pool.shutdownNow()
    commit(store)
    same("written there", rowsAt(fresh(), 2), Seq(v("a", 0) -> v(1), v("b", 0) -> v(2)))
  }

  testWithAppends("readers-in-other-threads") {
    // A provider with one store at a time must wait for it.
    val provider = fresh(Prefixed, conf = Map("spark.sql.streaming.stateStore.rocksdb.lockAcquireTimeoutMs" -> "60000"))
    // At version n every row of every word is n, and there are n words.
    def commitVersion(version: Int): Unit = write(provider, version, Prefixed) { t =>
      for (word <- 0 to version; number <- 1 to 20) t.put(v(s"w$word", number), v(version + 1))
      t.remove(v(s"w$version", 20))
    }
    for (version <- 0 to 4) commitVersion(version)
    def isWhole(version: Int): Boolean = {
      val store = read(provider, version)
      val t = table(store, Prefixed)
      try {
        val rows = t.rows
        val pairs = (0 until version).flatMap(word => t.prefixed(v(s"w$word")))
        rows.length == pairs.length && rows.length == 20 * version - 1 &&
        (rows ++ pairs).forall(_._2.head == version) &&
        t.get(v("w0", 1)) == v(version) && t.get(v(s"w${version - 1}", 20)) == null
      } finally store.release()
    }
    val newest = new java.util.concurrent.atomic.AtomicInteger(5)
    val stop = new java.util.concurrent.atomic.AtomicBoolean
    val pool = Executors.newFixedThreadPool(3)
    try {
      val futures = (0 until 3).map { back =>
        val task: Callable[Seq[Int]] =
          () => Iterator.continually(newest.get - back).takeWhile(_ => !stop.get).filterNot(isWhole).toList
        pool.submit(task)
      }
      for (version <- 5 until 15) {
        commitVersion(version)
        newest.set(version + 1)
      }
      stop.set(true)
      futures.foreach(each =>
        allows("reading")(same("versions that were not whole", each.get(60, TimeUnit.SECONDS), Nil)))
    } finally {
      stop.set(true)
      pool.shutdownNow()
    }
  }

  testWithAppends("unreleased-stores") {
    write(provider, 0)(_.put(v("a", 0), v(1)))
    // A task died before the second operator upgraded its read store.
    read(provider, 1)
    val store = open(provider, 1)
    table(store).put(v("b", 0), v(2))
    commit(store)
    same("rows", rowsAt(provider, 2), Seq(v("a", 0) -> v(1), v("b", 0) -> v(2)))
  }

  test("unclosed-iterators") {
    write(provider, 0)(t => for (number <- 1 to 20) t.put(v("a", number), v(number)))
    for (turn <- 1L to 5L) {
      val store = open(provider, turn)
      store.iterator("default").next()
      table(store).put(v("a", 1), v(-turn.toInt))
      commit(store)
    }
    same("rows", rowsAt(provider, 6).length, 20)
  }

  testWithAppends("a-snapshot-is-asked-for") {
    val store = openForSnapshot(provider, 0)
    table(store).put(v("a", 0), v(1))
    commit(store)
    provider.doMaintenance()
    same("the newest snapshot", newestSnapshot, 1L)
    same("reloaded", rowsAt(fresh(), 1), Seq(v("a", 0) -> v(1)))
  }

  testWithAppends("an-empty-store-above-the-last-version") {
    for (version <- 0 to 1) write(provider, version)(_.put(v("a", version), v(version)))
    // Offline repartition: the rows are written again into the next version.
    val store = openEmpty(provider, 2)
    same("it is empty", table(store).sorted, Nil)
    table(store).put(v("new", 0), v(1))
    commit(store)
    same("reloaded", rowsAt(fresh(), 3), Seq(v("new", 0) -> v(1)))
  }
}
