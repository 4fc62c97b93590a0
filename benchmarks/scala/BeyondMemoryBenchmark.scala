package io.dynastate.benchmarks

import org.apache.spark.sql.execution.streaming.state.StateStoreProvider

/** Batches on a store of which a part fits in memory: the initial load and maintenance; warm-up and measured batches of
 * uniform keys; the same of popular keys; batches beside a snapshot; and a snapshot of the last version.
 * `BeyondMemoryRestart` opens that version in other processes, and `BeyondMemoryChanges` makes versions after it.
 */
object BeyondMemoryBenchmark {
  private val Mb = 1024.0 * 1024
  /** Batches beside a snapshot, which waits while they commit. */
  private val BesideMax = 100

  def main(args: Array[String]): Unit = {
    val plan = Plan.of(new Arguments(args, Plan.Names))
    val figures = new Figures
    val sidecars = new SidecarWatch
    OtherStore.makeTiny(plan)
    val driver = new StateDriver(plan)
    // Classes, connections and the benchmark's own objects are there by now: what comes is rows, and what they need.
    val heapBefore = Memory.reachableHeap()
    val provider = driver.newProvider()
    figures("load_s") = driver.load(provider)
    provider.doSnapshotMaintenance()
    var version = plan.loadBatches.toLong

    def batch(isZipf: Boolean = false, isForced: Boolean = false): BatchTimes = {
      version += 1
      driver.runBatch(provider, version - 1, isZipf, isForced)
    }

    def measure(name: String, isZipf: Boolean): Unit = {
      (0 until plan.warmup).foreach(_ => batch(isZipf))
      val writtenBefore = Memory.writtenBytes
      val times = (0 until plan.batches).map(_ => batch(isZipf))
      figures(s"${name}_written_mb") = (Memory.writtenBytes - writtenBefore) / Mb / plan.batches
      report(name, times, figures)
      figures(s"${name}_heap_mb") = (Memory.reachableHeap() - heapBefore) / Mb
      figures(s"${name}_rss_mb") = Memory.status(ProcessHandle.current().pid, "VmRSS") / Mb
    }

    measure("uniform", isZipf = false)
    measure("zipf", isZipf = true)
    val measured = version
    batch(isForced = true)
    val snapshot = new Thread(() => figures("beside_snapshot_ms") = snapshotMs(provider))
    snapshot.start()
    val isAlive = Iterator.continually(snapshot.isAlive).takeWhile(identity)
    val beside = isAlive.take(BesideMax).map(_ => batch().whole / 1e6).toArray
    snapshot.join()
    // A snapshot may end before the first batch does.
    figures("beside_batch_ms") = beside.sorted.lift(beside.length / 2).getOrElse(0.0)
    figures("beside_batch_max_ms") = beside.maxOption.getOrElse(0.0)
    batch(isForced = true)
    figures("snapshot_ms") = snapshotMs(provider)
    figures("sidecar_rss_max_mb") = sidecars.peakBytes / Mb
    provider.close()
    OtherStore.make(BeyondMemory.withEverySnapshot(plan), BeyondMemory.otherRows(plan))
    figures("version") = version
    figures("more") = version - measured
    figures.printAndExit()
  }

  private def snapshotMs(provider: StateStoreProvider): Double = {
    val start = System.nanoTime()
    provider.doSnapshotMaintenance()
    (System.nanoTime() - start) / 1e6
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

/** Versions after a snapshot, in a fresh process: `changed` batches of uniform keys, with a maintenance every ten of
 * them, and none in the last five: a store that makes a snapshot each time is in the middle of its interval.
 */
object BeyondMemoryChanges {
  private val Interval = 10

  def main(args: Array[String]): Unit = {
    val arguments = new Arguments(args, Plan.Names ++ BeyondMemory.Names + "changed")
    val (figures, changed) = (new Figures, arguments.int("changed", 0))
    val (driver, version) = BeyondMemory.resume(BeyondMemory.withEverySnapshot(Plan.of(arguments)), arguments)
    val provider = driver.newProvider()
    val units = (1 to changed).map { batch =>
      val metrics = driver.runBatch(provider, version + batch - 1).metrics
      if ((changed - batch) % Interval == Interval / 2) provider.doSnapshotMaintenance()
      metrics.getOrElse("dynastateMaintenanceWriteUnits", 0L)
    }
    // A snapshot of ours is not due.
    driver.check(units.sum == 0, s"maintenance wrote ${units.sum} units")
    provider.close()
    figures("version") = version + changed
    figures("more") = arguments.int("more", 0) + changed
    figures.printAndExit()
  }
}

/** The first batches, in a fresh process, of a store that another one left. A smaller store, which does not fit in
 * memory either, is opened and changed before.
 */
object BeyondMemoryRestart {
  private val Warmup = 3
  private val Next = 5

  def main(args: Array[String]): Unit = {
    val arguments = new Arguments(args, Plan.Names ++ BeyondMemory.Names)
    val plan = Plan.of(arguments)
    val figures = new Figures
    (1 to Warmup).foreach(_ => OtherStore.change(plan, BeyondMemory.otherRows(plan)))
    val (driver, version) = BeyondMemory.resume(plan, arguments)
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
    val next = (1 to Next).map(batch => driver.runBatch(provider, version + batch))
    figures("first_batch_ms") = first.whole / 1e6
    figures("first_open_ms") = first.open / 1e6
    figures("first_row_ms") = (first.open + first.firstGet) / 1e6
    figures("first_gets_ms") = first.get / 1e6
    figures("first_commit_ms") = first.commit / 1e6
    figures("first_read_units") = first.metrics.getOrElse("dynastateReadUnits", 0L)
    figures("next_batch_ms") = Figures.median(Figures.millis(next.map(_.whole)))
    provider.close()
    figures.printAndExit()
  }
}

private object BeyondMemory {

  /** Arguments of a process that continues: the version that another one left, and how many batches of uniform keys
   * came after those of the plan.
   */
  val Names: Set[String] = Set("version", "more")

  def resume(plan: Plan, arguments: Arguments): (StateDriver, Long) = {
    val driver = new StateDriver(plan)
    driver.replayBatches()
    driver.replayBatches(isZipf = true)
    driver.replayBatches(batches = arguments.int("more", 0))
    (driver, arguments.long("version", 0))
  }

  /** A snapshot is due in each maintenance, where that is cheap for the store. */
  def withEverySnapshot(plan: Plan): Plan =
    plan.copy(conf = plan.conf + ("spark.sql.streaming.stateStore.minDeltasForSnapshot" -> "1"))

  /** Of the smaller store: more than a fifth of the state. */
  def otherRows(plan: Plan): Int = plan.rows / 10 * 3
}
