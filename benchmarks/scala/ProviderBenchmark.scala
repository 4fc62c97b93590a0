package io.dynastate.benchmarks

import java.util.{LinkedHashMap => JLinkedHashMap, Random, UUID}

import scala.util.Using

import com.fasterxml.jackson.databind.ObjectMapper
import org.apache.hadoop.conf.Configuration
import org.apache.spark.sql.execution.streaming.state.{NoPrefixKeyStateEncoderSpec, StateStore, StateStoreConf, StateStoreId, StateStoreProvider}
import org.apache.spark.sql.internal.SQLConf

/**
 * Drives one state store provider through Spark's own traits, with no session, no query and no operator
 * around it, and prints what each step took: one JSON object, on the last line of standard output.
 *
 * A run is: init; the initial load; warm-up batches; measured batches, each one getStore, gets, puts and
 * commit; the whole state iterated; the heap weighed; snapshot maintenance once; a cold open with a new
 * provider. Every read is checked, so a provider that is fast and wrong does not get to the end.
 * With `reopen=true` a second, fresh process opens what the first left: a restart.
 *
 * Gets and puts are timed as one loop each, not one by one: reading the clock costs as much as a get.
 * Rows are made before the clock starts, as an operator's rows come from elsewhere.
 */
object ProviderBenchmark {

  def main(args: Array[String]): Unit = {
    val plan = Plan.parse(args)
    val figures = new Figures
    figures("provider") = plan.provider
    figures("rows") = plan.rows
    figures("updates") = plan.updates
    val run = new ProviderRun(plan, figures)
    if (plan.reopen) run.reopen() else run.wholeRun()
    println(figures.json)
    System.out.flush()
    // A provider may have left threads that are not daemons.
    System.exit(0)
  }
}

/** The figures, in the order they were found. */
private[benchmarks] final class Figures {
  private val found = new JLinkedHashMap[String, Any]

  def update(name: String, value: Any): Unit = found.put(name, value)

  def json: String = new ObjectMapper().writeValueAsString(found)
}

/** What one batch took, ns. `keys` is how many were got and how many were put. */
private[benchmarks] final case class BatchTimes(open: Long, get: Long, put: Long, commit: Long, keys: Int) {
  def whole: Long = open + get + put + commit
}

private[benchmarks] final class ProviderRun(plan: Plan, figures: Figures) {
  private val Mb = 1024.0 * 1024
  private val IterateTurns = 3

  private val maker = new RowMaker
  private val random = new Random(plan.seed)
  private val pageRows = math.max(plan.loadRows, plan.updates)
  private val keys = new RowPage(pageRows, Rows.KeySchema.length, Rows.KeyBytes)
  private val values = new RowPage(pageRows, Rows.ValueSchema.length, Rows.ValueBytes)

  /** A permutation of all row numbers; a batch shuffles the first `updates` of it. */
  private val ids = Array.range(0, plan.rows)

  /** How often each row was updated. */
  private val counts = new Array[Int](plan.rows)

  private val id = StateStoreId(plan.checkpoint, operatorId = 0, partitionId = 0)

  def wholeRun(): Unit = {
    // Everything of ours is allocated by now: what is added from here on is the provider's.
    val heapBefore = Memory.reachableHeap()
    val watch = new SidecarWatch
    var provider = newProvider()
    load(provider)
    figures("sidecar_rss_load_mb") = watch.peakBytes / Mb
    runBatches(provider)
    figures("sidecar_rss_max_mb") = watch.peakBytes / Mb
    figures("sidecar_cpu_ms") = watch.cpuMs
    watch.close()
    iterate(provider)
    weigh(heapBefore)
    timed("maintenance_ms")(provider.doSnapshotMaintenance())
    provider.close()
    provider = newProvider()
    coldOpen(provider, "cold_open_ms")
    provider.close()
  }

  def reopen(): Unit = {
    val provider = newProvider()
    coldOpen(provider, "restart_open_ms")
    iterate(provider)
    provider.close()
  }

  /** A provider as an executor makes it, of a query run of its own. */
  private def newProvider(): StateStoreProvider = {
    val session = new SQLConf
    val hadoop = new Configuration
    val fixed = Map(
      "spark.sql.streaming.stateStore.providerClass" -> plan.provider,
      // There is no driver here to report a commit to.
      "spark.sql.streaming.stateStore.commitValidation.enabled" -> "false")
    (fixed ++ plan.conf).foreach { case (name, value) =>
      session.setConfString(name, value)
      hadoop.set(name, value)
    }
    hadoop.set("sql.streaming.runId", UUID.randomUUID().toString)
    val provider = StateStoreProvider.create(plan.provider)
    provider.init(
      id,
      Rows.KeySchema,
      Rows.ValueSchema,
      NoPrefixKeyStateEncoderSpec(Rows.KeySchema),
      useColumnFamilies = false,
      new StateStoreConf(session, Map.empty[String, String]),
      hadoop)
    provider
  }

  /** Put every row once, `loadRows` a version. Reports the seconds in put and commit, the making of rows left out. */
  private def load(provider: StateStoreProvider): Unit = {
    var ns = 0L
    for (batch <- 0 until plan.loadBatches) {
      val first = batch * plan.loadRows
      val size = math.min(plan.loadRows, plan.rows - first)
      for (i <- 0 until size) {
        keys.set(i, maker.key(first + i))
        values.set(i, maker.value(first + i, 0))
      }
      val start = System.nanoTime()
      val store = provider.getStore(batch)
      putAll(store, size)
      commit(store, batch)
      ns += System.nanoTime() - start
    }
    figures("load_s") = ns / 1e9
  }

  private def runBatches(provider: StateStoreProvider): Unit = {
    val times = (0 until plan.warmup + plan.batches)
      .map(batch => runBatch(provider, plan.loadBatches + batch))
      .drop(plan.warmup)
    figures("open_ms") = median(times.map(_.open / 1e6))
    figures("get_ns") = median(times.map(batch => batch.get.toDouble / batch.keys))
    figures("put_ns") = median(times.map(batch => batch.put.toDouble / batch.keys))
    figures("commit_ms") = median(times.map(_.commit / 1e6))
    figures("batch_ms") = median(times.map(_.whole / 1e6))
    figures("batch_p95_ms") = percentile(times.map(_.whole / 1e6), 0.95)
    figures("batches_ms") = times.map(_.whole / 1e6).toArray
    figures("opens_ms") = times.map(_.open / 1e6).toArray
  }

  private def runBatch(provider: StateStoreProvider, version: Long): BatchTimes = {
    val expected = prepareBatch()
    val start = System.nanoTime()
    val store = provider.getStore(version)
    val opened = System.nanoTime()
    val found = getAll(store, plan.updates)
    val got = System.nanoTime()
    putAll(store, plan.updates)
    val put = System.nanoTime()
    commit(store, version)
    val committed = System.nanoTime()
    check(found == expected, s"gets of version $version added up to $found, expected $expected")
    check(store.metrics.numKeys == plan.rows, s"version ${version + 1} counts ${store.metrics.numKeys} keys")
    BatchTimes(opened - start, got - opened, put - got, committed - put, plan.updates)
  }

  /** Choose distinct keys, lay out their rows with the counts they will have, return what they add up to now. */
  private def prepareBatch(): Long = {
    var before = 0L
    for (i <- 0 until plan.updates) {
      val j = i + random.nextInt(plan.rows - i)
      val row = ids(j)
      ids(j) = ids(i)
      ids(i) = row
      before += counts(row)
      counts(row) += 1
      keys.set(i, maker.key(row))
      values.set(i, maker.value(row, counts(row)))
    }
    before
  }

  private def getAll(store: StateStore, size: Int): Long = {
    var sum = 0L
    var i = 0
    while (i < size) {
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
  }

  /** Read the whole last version through, several times; reports the median. */
  private def iterate(provider: StateStoreProvider): Unit = {
    val store = provider.getStore(plan.lastVersion)
    val turns = (1 to IterateTurns).map { _ =>
      val start = System.nanoTime()
      val (rows, sum) = sumAll(store)
      val ns = System.nanoTime() - start
      check(rows == plan.rows, s"iterated $rows rows, expected ${plan.rows}")
      check(sum == plan.countsAtEnd, s"iterated counts add up to $sum, expected ${plan.countsAtEnd}")
      ns.toDouble / rows
    }
    store.abort()
    figures("iterate_ns") = median(turns)
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

  private def weigh(heapBefore: Long): Unit = {
    val heap = Memory.reachableHeap()
    figures("state_heap_mb") = (heap - heapBefore) / Mb
    figures("process_heap_mb") = heap / Mb
    figures("process_rss_mb") = Memory.status(ProcessHandle.current().pid, "VmRSS") / Mb
  }

  /** From getStore of the last version to the answer of the first get. */
  private def coldOpen(provider: StateStoreProvider, name: String): Unit = {
    keys.set(0, maker.key(0))
    val found = timed(name) {
      val store = provider.getStore(plan.lastVersion)
      val value = store.get(keys.at(0), StateStore.DEFAULT_COL_FAMILY_NAME)
      check(value != null, "the first key is not in the state")
      store
    }
    found.abort()
  }

  private def timed[T](name: String)(body: => T): T = {
    val start = System.nanoTime()
    val result = body
    figures(name) = (System.nanoTime() - start) / 1e6
    result
  }

  private def check(condition: Boolean, message: => String): Unit = {
    if (!condition) throw new IllegalStateException(s"${plan.provider}: $message")
  }

  private def median(figures: Seq[Double]): Double = {
    val sorted = figures.sorted
    (sorted((sorted.length - 1) / 2) + sorted(sorted.length / 2)) / 2
  }

  /** By nearest rank: an observed figure, never one between two. */
  private def percentile(figures: Seq[Double], share: Double): Double =
    figures.sorted.apply(math.max(0, math.ceil(share * figures.length).toInt - 1))
}
