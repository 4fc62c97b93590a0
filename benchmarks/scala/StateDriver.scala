package io.dynastate.benchmarks

import java.util.{Random, UUID}

import scala.util.Using

import org.apache.hadoop.conf.Configuration
import org.apache.spark.sql.execution.streaming.state.{
  NoPrefixKeyStateEncoderSpec, StateStore, StateStoreConf, StateStoreId, StateStoreProvider
}
import org.apache.spark.sql.internal.SQLConf

/** Times of one batch, ns. `get` is of all gets, `firstGet` of the first of them; `keys` is the number of gets and of
 * puts; `metrics` are the provider's, of its commit.
 */
private[benchmarks] final case class BatchTimes(open: Long, firstGet: Long, get: Long, put: Long, commit: Long,
    keys: Int, metrics: Map[String, Long]) {
  def whole: Long = open + get + put + commit
}

/** Times to read state that is not in memory, ms: to the first `get`, and until every row was read. */
private[benchmarks] final case class ColdOpen(firstGet: Double, everyRow: Double)

/** Times of single `get`s, the first of them with `getStore`, and of a commit after them, ms; `metrics` are the
 * provider's, of that commit.
 */
private[benchmarks] final case class LookUps(gets: Seq[Double], commit: Double, metrics: Map[String, Long])

/** Drives one store of a provider through Spark's own traits, without session, query or operator, and checks every
 * read, so that a fast and wrong provider fails.
 *
 * Gets and puts are timed as one loop each, not one by one: reading the clock costs as much as a get.
 * Rows are made before the clock starts.
 *
 * @param partition which of the checkpoint's stores
 * @param counts how often each row was updated
 */
private[benchmarks] final class StateDriver(plan: Plan, partition: Int, counts: Array[Int]) {
  private val maker = new RowMaker(plan.valueBytes)
  private val random = new Random(plan.seed)
  private val pageRows = math.max(plan.loadRows, plan.updates)
  private val keys = new RowPage(pageRows, Rows.KeySchema.length, Rows.KeyBytes)
  private val values = new RowPage(pageRows, Rows.ValueSchema.length, plan.valueBytes)
  private val id = StateStoreId(plan.checkpoint, operatorId = 0, partitionId = partition)

  /** A permutation of all row numbers; a batch shuffles the first `updates` of it. */
  private val ids = Array.range(0, plan.rows)
  /** The checkpoint id of the last commit, of this process or of another one, in format 2. */
  var checkpointId: Option[String] = None
  private val zipf = new ZipfRows(plan.rows, plan.seed)

  def this(plan: Plan, partition: Int = 0) = this(plan, partition, new Array[Int](plan.rows))

  /** A provider as an executor makes it, of a run of the query. */
  def newProvider(run: UUID = UUID.randomUUID()): StateStoreProvider = {
    val session = new SQLConf
    val hadoop = new Configuration
    val fixed = Map(
      "spark.sql.streaming.stateStore.providerClass" -> plan.provider,
      // There is no driver to report a commit to.
      "spark.sql.streaming.stateStore.commitValidation.enabled" -> "false")
    (fixed ++ plan.conf).foreach { case (name, value) =>
      session.setConfString(name, value)
      hadoop.set(name, value)
    }
    hadoop.set("sql.streaming.runId", run.toString)
    val provider = StateStoreProvider.create(plan.provider)
    provider.init(id, Rows.KeySchema, Rows.ValueSchema, NoPrefixKeyStateEncoderSpec(Rows.KeySchema),
      useColumnFamilies = false, new StateStoreConf(session, Map.empty[String, String]), hadoop)
    provider
  }

  /** Put every row once, with its count, `loadRows` a version. Returns the seconds in put and commit, without the
   * making of rows.
   */
  def load(provider: StateStoreProvider): Double = {
    var ns = 0L
    for (batch <- 0 until plan.loadBatches) {
      val first = batch * plan.loadRows
      val size = math.min(plan.loadRows, plan.rows - first)
      for (i <- 0 until size) {
        keys.set(i, maker.key(first + i))
        values.set(i, maker.value(first + i, counts(first + i)))
      }
      val start = System.nanoTime()
      val store = provider.getStore(batch, checkpointId)
      putAll(store, size)
      commit(store, batch)
      ns += System.nanoTime() - start
    }
    ns / 1e9
  }

  /** Get and put `updates` distinct random rows of a version: each as likely as the others, or by Zipf's law. With
   * `isForced` the next maintenance makes a snapshot. `isMade` is called after the rows were made, and before the clock
   * starts.
   */
  def runBatch(provider: StateStoreProvider, version: Long, isZipf: Boolean = false, isForced: Boolean = false,
      isMade: () => Unit = () => ()): BatchTimes = {
    val expected = prepareBatch(isZipf)
    isMade()
    runPrepared(provider, version, expected, isForced)
  }

  /** Get and put the rows that `prepareBatch` has made; `expected` is what that returned. */
  def runPrepared(provider: StateStoreProvider, version: Long, expected: Long,
      isForced: Boolean = false): BatchTimes = {
    val start = System.nanoTime()
    val store = provider.getStore(version, checkpointId, forceSnapshotOnCommit = isForced)
    val opened = System.nanoTime()
    val firstFound = getAll(store, 0, 1)
    val gotFirst = System.nanoTime()
    val found = firstFound + getAll(store, 1, plan.updates)
    val got = System.nanoTime()
    putAll(store, plan.updates)
    val put = System.nanoTime()
    commit(store, version)
    val committed = System.nanoTime()
    check(found == expected, s"gets of version $version added up to $found, expected $expected")
    check(store.metrics.numKeys == plan.rows, s"version ${version + 1} counts ${store.metrics.numKeys} keys")
    val metrics = store.metrics.customMetrics.map { case (metric, value) => metric.name -> value }
    BatchTimes(opened - start, gotFirst - opened, got - opened, put - got, committed - put, plan.updates, metrics)
  }

  /** Time from getStore of a version to the answer of the first get, and until every row was read. */
  def coldOpen(provider: StateStoreProvider, version: Long, countsExpected: Long): ColdOpen = {
    keys.set(0, maker.key(plan.rows / 3))
    val start = System.nanoTime()
    val store = provider.getStore(version)
    val value = store.get(keys.at(0), StateStore.DEFAULT_COL_FAMILY_NAME)
    val firstGet = (System.nanoTime() - start) / 1e6
    check(value != null, "a row is not in the state")
    checkAll(store, countsExpected)
    val everyRow = (System.nanoTime() - start) / 1e6
    store.abort()
    ColdOpen(firstGet, everyRow)
  }

  /** Count all updates of batches, by default of the plan's, without a store: another process has run them. */
  def replayBatches(isZipf: Boolean = false, batches: Int = plan.warmup + plan.batches): Unit =
    (0 until batches).foreach(_ => choose(isZipf).foreach(row => counts(row) += 1))

  /** Get distinct random rows of a version that is not in memory; then put others, and commit. */
  def lookUp(provider: StateStoreProvider, version: Long, gets: Int, puts: Int, seed: Long): LookUps = {
    val dice = new Random(seed + 1)
    val rows = Iterator.continually(dice.nextInt(plan.rows)).distinct.take(gets).toArray
    var store: StateStore = null
    val times = rows.toSeq.map { row =>
      keys.set(0, maker.key(row))
      val start = System.nanoTime()
      if (store == null) store = provider.getStore(version)
      val value = store.get(keys.at(0), StateStore.DEFAULT_COL_FAMILY_NAME)
      val took = (System.nanoTime() - start) / 1e6
      check(value.getLong(Rows.Count) == counts(row),
        s"row $row has the count ${value.getLong(Rows.Count)}, expected ${counts(row)}")
      took
    }
    if (puts == 0) {
      store.abort()
      LookUps(times, 0, Map.empty)
    } else {
      (0 until puts).foreach { at =>
        val row = dice.nextInt(plan.rows)
        keys.set(at, maker.key(row))
        values.set(at, maker.value(row, counts(row)))
      }
      putAll(store, puts)
      val start = System.nanoTime()
      commit(store, version)
      val took = (System.nanoTime() - start) / 1e6
      check(store.metrics.numKeys == plan.rows, s"version ${version + 1} counts ${store.metrics.numKeys} keys")
      LookUps(times, took, store.metrics.customMetrics.map { case (metric, value) => metric.name -> value })
    }
  }

  /** Read a whole version; the time, ns. */
  def iterate(provider: StateStoreProvider, version: Long, countsExpected: Long): Long = {
    val store = provider.getStore(version)
    val start = System.nanoTime()
    checkAll(store, countsExpected)
    val ns = System.nanoTime() - start
    store.abort()
    ns
  }

  def check(condition: Boolean, message: => String): Unit = {
    if (!condition) throw new IllegalStateException(s"${plan.provider}: $message")
  }

  private def checkAll(store: StateStore, countsExpected: Long): Unit = {
    val (rows, sum) = sumAll(store)
    check(rows == plan.rows, s"iterated $rows rows, expected ${plan.rows}")
    check(sum == countsExpected, s"iterated counts add up to $sum, expected $countsExpected")
  }

  /** Choose distinct keys, make their rows with the new counts, and return the sum of the current ones. */
  def prepareBatch(isZipf: Boolean = false): Long = {
    val chosen = choose(isZipf)
    var before = 0L
    for (i <- 0 until plan.updates) {
      val row = chosen(i)
      before += counts(row)
      counts(row) += 1
      keys.set(i, maker.key(row))
      values.set(i, maker.value(row, counts(row)))
    }
    before
  }

  /** Distinct rows, in random order. */
  private def choose(isZipf: Boolean): Array[Int] = {
    if (isZipf) {
      zipf.draw(plan.updates)
    } else {
      for (i <- 0 until plan.updates) {
        val j = i + random.nextInt(plan.rows - i)
        val row = ids(j)
        ids(j) = ids(i)
        ids(i) = row
      }
      ids.take(plan.updates)
    }
  }

  private def getAll(store: StateStore, from: Int, until: Int): Long = {
    var sum = 0L
    var i = from
    while (i < until) {
      sum += store.get(keys.at(i), StateStore.DEFAULT_COL_FAMILY_NAME).getLong(Rows.Count)
      i += 1
    }
    sum
  }

  private def putAll(store: StateStore, size: Int): Unit = {
    var i = 0
    while (i < size) {
      store.put(keys.at(i), values.at(i), StateStore.DEFAULT_COL_FAMILY_NAME)
      i += 1
    }
  }

  private def commit(store: StateStore, version: Long): Unit = {
    val committed = store.commit()
    check(committed == version + 1, s"commit of version $version answered $committed")
    if (plan.conf.get(StateDriver.Format).contains("2"))
      checkpointId = store.getStateStoreCheckpointInfo().stateStoreCkptId
  }

  private def sumAll(store: StateStore): (Int, Long) = {
    Using.resource(store.iterator(StateStore.DEFAULT_COL_FAMILY_NAME)) { pairs =>
      var rows = 0
      var sum = 0L
      while (pairs.hasNext) {
        sum += pairs.next().value.getLong(Rows.Count)
        rows += 1
      }
      (rows, sum)
    }
  }
}

private[benchmarks] object StateDriver {
  private val Format = "spark.sql.streaming.stateStore.checkpointFormatVersion"
}
