package io.dynastate.benchmarks

/**
 * A query that ends, with one provider: the initial load, warm-up batches, measured batches, and maintenance that leaves
 * a snapshot of the last version. `ColdOpenBenchmark` opens it in another process.
 */
object RecoveryBenchmark {

  def main(args: Array[String]): Unit = {
    val plan = Plan.of(new Arguments(args, Plan.Names))
    val figures = new Figures
    OtherStore.make(plan)
    val driver = new StateDriver(plan)
    val provider = driver.newProvider()
    figures("load_s") = driver.load(provider)
    val batches = (0 until plan.warmup + plan.batches)
      .map(batch => driver.runBatch(provider, plan.loadBatches + batch).whole / 1e6)
      .drop(plan.warmup)
    figures("batch_ms") = Figures.median(batches)
    figures("batch_p95_ms") = Figures.percentile(batches, 0.95)
    val start = System.nanoTime()
    provider.doSnapshotMaintenance()
    figures("snapshot_ms") = (System.nanoTime() - start) / 1e6
    provider.close()
    figures("version") = plan.lastVersion
    figures("counts") = plan.countsAtEnd
    figures.printAndExit()
  }
}

/**
 * Opens, in a fresh process, the store of another one: the time to the first `get`, and until every row was read.
 * Another store of the same provider is opened first, several times: classes, native libraries and the sidecar are then
 * loaded, and only the store's own time is measured.
 */
object ColdOpenBenchmark {
  private val Warmup = 3

  def main(args: Array[String]): Unit = {
    val arguments = new Arguments(args, Plan.Names ++ Set("partition", "version", "counts"))
    val plan = Plan.of(arguments)
    val figures = new Figures
    (1 to Warmup).foreach(_ => OtherStore.open(plan))
    System.gc()
    val driver = new StateDriver(plan, arguments.int("partition", 0))
    val provider = driver.newProvider()
    val (cpuBefore, sidecarBefore) = (Memory.cpuMs, Memory.sidecarCpuMs)
    val took = driver.coldOpen(provider, arguments.long("version", 0), arguments.long("counts", 0))
    figures("first_get_ms") = took.firstGet
    figures("every_row_ms") = took.everyRow
    figures("cpu_ms") = Memory.cpuMs - cpuBefore
    figures("sidecar_cpu_ms") = Memory.sidecarCpuMs - sidecarBefore
    provider.close()
    figures.printAndExit()
  }
}

/** A store beside the one that is measured. */
private[benchmarks] object OtherStore {
  private val Partition = 9

  def make(plan: Plan): Unit = {
    val its = planOf(plan)
    val driver = new StateDriver(its, Partition)
    val provider = driver.newProvider()
    driver.load(provider)
    provider.doSnapshotMaintenance()
    provider.close()
  }

  def open(plan: Plan): Unit = {
    val its = planOf(plan)
    val driver = new StateDriver(its, Partition)
    val provider = driver.newProvider()
    driver.coldOpen(provider, its.lastVersion, its.countsAtEnd)
    provider.close()
  }

  private def planOf(plan: Plan): Plan = plan.copy(rows = 100000, loadRows = 50000, updates = 1, batches = 0, warmup = 0)
}
