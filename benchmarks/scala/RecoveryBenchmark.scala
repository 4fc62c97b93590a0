package io.dynastate.benchmarks

/** A query that ends, with one provider: the initial load, warm-up batches, measured batches, and maintenance that
 * leaves a snapshot of the last version. `ColdOpenBenchmark` opens it in another process.
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

/** Opens, in a fresh process, the store of another one: the time to the first `get`, and until every row was read.
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
    val driver = new StateDriver(plan, arguments.int("partition", 0))
    val provider = driver.newProvider()
    Memory.rest()
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
  private val Rows = 100000
  /** After its snapshot, as of the store that is measured. */
  private val ChangedVersions = 50
  private val Updates = 1000
  private val Partition = 9
  private val TinyRows = 1000
  private val TinyPartition = 8

  /** One with a snapshot, and versions after it. */
  def make(plan: Plan): Unit = makeOf(changedPlan(plan), Partition)

  /** One with a snapshot of its last version. */
  def make(plan: Plan, rows: Int): Unit = makeOf(planOf(plan, rows), Partition)

  /** Another one, which loads all classes and leaves next to no rows in memory. */
  def makeTiny(plan: Plan): Unit = makeOf(planOf(plan, TinyRows), TinyPartition)

  private def makeOf(its: Plan, partition: Int): Unit = {
    val driver = new StateDriver(its, partition)
    val provider = driver.newProvider()
    driver.load(provider)
    provider.doSnapshotMaintenance()
    (0 until its.batches).foreach(batch => driver.runBatch(provider, its.loadBatches + batch))
    provider.close()
  }

  def open(plan: Plan): Unit = {
    val its = changedPlan(plan)
    val driver = new StateDriver(its, Partition)
    val provider = driver.newProvider()
    driver.coldOpen(provider, its.lastVersion, its.countsAtEnd)
    provider.close()
  }

  /** Run the first batch on it; always the same version. */
  def change(plan: Plan, rows: Int): Unit = {
    val its = planOf(plan, rows).copy(updates = math.min(plan.updates, rows))
    val driver = new StateDriver(its, Partition)
    val provider = driver.newProvider()
    driver.runBatch(provider, its.lastVersion)
    provider.close()
  }

  private def changedPlan(plan: Plan): Plan = planOf(plan, Rows).copy(updates = Updates, batches = ChangedVersions)

  private def planOf(plan: Plan, rows: Int): Plan =
    plan.copy(rows = rows, loadRows = rows / 2, updates = 1, batches = 0, warmup = 0)
}
