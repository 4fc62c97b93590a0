package io.dynastate.benchmarks

import org.apache.spark.sql.execution.streaming.state.StateStoreProvider

/** Measures each step of a store with one provider. Prints one JSON object, on the last line of standard output.
 *
 * A run is: a store of 1,000 rows, used and closed; init; the initial load; warm-up batches; measured batches, each one
 * getStore, gets, puts and commit; the whole state iterated; the heap weighed; snapshot maintenance once; a cold open
 * with a new provider. With `reopen=true` a second, fresh process opens the store of the first: a restart.
 */
object ProviderBenchmark {

  def main(args: Array[String]): Unit = {
    val arguments = new Arguments(args, Plan.Names + "reopen")
    val plan = Plan.of(arguments)
    val figures = new Figures
    figures("provider") = plan.provider
    figures("rows") = plan.rows
    figures("updates") = plan.updates
    val run = new ProviderRun(plan, figures)
    if (arguments.isSet("reopen")) run.reopen() else run.wholeRun()
    figures.printAndExit()
  }
}

private[benchmarks] final class ProviderRun(plan: Plan, figures: Figures) {
  private val Mb = 1024.0 * 1024
  private val IterateTurns = 3

  private val driver = new StateDriver(plan)

  def wholeRun(): Unit = {
    OtherStore.makeTiny(plan)
    // Classes, connections and the benchmark's own objects are there by now: what comes is rows, and what they need.
    val heapBefore = Memory.reachableHeap()
    val watch = new SidecarWatch
    var provider = driver.newProvider()
    figures("load_s") = driver.load(provider)
    figures("sidecar_rss_load_mb") = watch.peakBytes / Mb
    runBatches(provider)
    figures("sidecar_rss_max_mb") = watch.peakBytes / Mb
    figures("sidecar_cpu_ms") = watch.cpuMs
    watch.close()
    iterate(provider)
    weigh(heapBefore)
    val start = System.nanoTime()
    provider.doSnapshotMaintenance()
    figures("maintenance_ms") = (System.nanoTime() - start) / 1e6
    provider.close()
    provider = driver.newProvider()
    figures("cold_open_ms") = driver.coldOpen(provider, plan.lastVersion, plan.countsAtEnd).firstGet
    provider.close()
  }

  def reopen(): Unit = {
    val provider = driver.newProvider()
    figures("restart_open_ms") = driver.coldOpen(provider, plan.lastVersion, plan.countsAtEnd).firstGet
    provider.close()
  }

  private def runBatches(provider: StateStoreProvider): Unit = {
    val times = (0 until plan.warmup + plan.batches)
      .map(batch => driver.runBatch(provider, plan.loadBatches + batch))
      .drop(plan.warmup)
    val opens = Figures.millis(times.map(_.open))
    val wholes = Figures.millis(times.map(_.whole))
    figures("open_ms") = Figures.median(opens)
    figures("get_ns") = Figures.median(times.map(batch => batch.get.toDouble / batch.keys))
    figures("put_ns") = Figures.median(times.map(batch => batch.put.toDouble / batch.keys))
    figures("commit_ms") = Figures.median(Figures.millis(times.map(_.commit)))
    figures("batch_ms") = Figures.median(wholes)
    figures("batch_p95_ms") = Figures.percentile(wholes, 0.95)
    figures("batches_ms") = wholes.toArray
    figures("opens_ms") = opens.toArray
  }

  /** Read the whole last version several times; the median. */
  private def iterate(provider: StateStoreProvider): Unit = {
    val turns =
      (1 to IterateTurns).map(_ => driver.iterate(provider, plan.lastVersion, plan.countsAtEnd).toDouble / plan.rows)
    figures("iterate_ns") = Figures.median(turns)
  }

  private def weigh(heapBefore: Long): Unit = {
    val heap = Memory.reachableHeap()
    figures("state_heap_mb") = (heap - heapBefore) / Mb
    figures("process_heap_mb") = heap / Mb
    figures("process_rss_mb") = Memory.status(ProcessHandle.current().pid, "VmRSS") / Mb
  }
}
