package io.dynastate.benchmarks

import org.apache.spark.sql.execution.streaming.state.StateStoreProvider

/** Batches on a store of which a part fits in memory: the initial load and maintenance; warm-up and measured batches of
 * uniform keys; the same of popular keys; and maintenance. `BeyondMemoryRestart` opens the last version in another
 * process.
 */
object BeyondMemoryBenchmark {
  private val Mb = 1024.0 * 1024

  def main(args: Array[String]): Unit = {
    val plan = Plan.of(new Arguments(args, Plan.Names))
    val figures = new Figures
    OtherStore.makeTiny(plan)
    val driver = new StateDriver(plan)
    // Classes, connections and the benchmark's own objects are there by now: what comes is rows, and what they need.
    val heapBefore = Memory.reachableHeap()
    val provider = driver.newProvider()
    figures("load_s") = driver.load(provider)
    provider.doSnapshotMaintenance()
    var version = plan.loadBatches.toLong

    def measure(name: String, isZipf: Boolean): Unit = {
      val times = (0 until plan.warmup + plan.batches).map { _ =>
        version += 1
        driver.runBatch(provider, version - 1, isZipf)
      }
      report(name, times.drop(plan.warmup), figures)
      figures(s"${name}_heap_mb") = (Memory.reachableHeap() - heapBefore) / Mb
      figures(s"${name}_rss_mb") = Memory.status(ProcessHandle.current().pid, "VmRSS") / Mb
    }

    measure("uniform", isZipf = false)
    measure("zipf", isZipf = true)
    val start = System.nanoTime()
    provider.doSnapshotMaintenance()
    figures("snapshot_ms") = (System.nanoTime() - start) / 1e6
    provider.close()
    OtherStore.make(plan, BeyondMemoryRestart.otherRows(plan))
    figures("version") = version
    figures.printAndExit()
  }

  private def report(name: String, batches: Seq[BatchTimes], figures: Figures): Unit = {
    val wholes = Figures.millis(batches.map(_.whole))
    figures(s"${name}_batch_ms") = Figures.median(wholes)
    figures(s"${name}_batch_p95_ms") = Figures.percentile(wholes, 0.95)
    figures(s"${name}_get_ns") = Figures.median(batches.map(batch => batch.get.toDouble / batch.keys))
    figures(s"${name}_put_ns") = Figures.median(batches.map(batch => batch.put.toDouble / batch.keys))
    figures(s"${name}_commit_ms") = Figures.median(Figures.millis(batches.map(_.commit)))
    figures(s"${name}_batches_ms") = wholes.toArray
    // All of ours: what was read and where it was found.
    val metrics = batches.flatMap(_.metrics.keys).distinct.sorted.filter(_.startsWith("dynastate"))
    metrics.foreach(metric => figures(s"${name}_$metric") = batches.map(_.metrics.getOrElse(metric, 0L)).sum)
  }
}

/** The first batches, in a fresh process, of a store that another one left. A smaller store, which does not fit in
 * memory either, is opened and changed before.
 */
object BeyondMemoryRestart {
  private val Warmup = 3
  private val Next = 5

  /** Of the smaller store: more than a fifth of the state. */
  def otherRows(plan: Plan): Int = plan.rows / 10 * 3

  def main(args: Array[String]): Unit = {
    val arguments = new Arguments(args, Plan.Names + "version")
    val plan = Plan.of(arguments)
    val figures = new Figures
    (1 to Warmup).foreach(_ => OtherStore.change(plan, otherRows(plan)))
    val driver = new StateDriver(plan)
    driver.replayBatches()
    driver.replayBatches(isZipf = true)
    val version = arguments.long("version", 0)
    val provider = driver.newProvider()
    var (cpuBefore, sidecarBefore) = (0.0, 0L)
    val first = driver.runBatch(
      provider,
      version,
      isMade = () => {
        Memory.rest()
        cpuBefore = Memory.cpuMs
        sidecarBefore = Memory.sidecarCpuMs
      })
    figures("first_cpu_ms") = Memory.cpuMs - cpuBefore
    figures("first_sidecar_cpu_ms") = Memory.sidecarCpuMs - sidecarBefore
    val times = first +: (1 to Next).map(batch => driver.runBatch(provider, version + batch))
    figures("first_batch_ms") = times.head.whole / 1e6
    figures("first_open_ms") = times.head.open / 1e6
    figures("first_gets_ms") = times.head.get / 1e6
    figures("first_commit_ms") = times.head.commit / 1e6
    figures("first_read_units") = times.head.metrics.getOrElse("dynastateReadUnits", 0L)
    figures("next_batch_ms") = Figures.median(Figures.millis(times.tail.map(_.whole)))
    provider.close()
    figures.printAndExit()
  }
}
