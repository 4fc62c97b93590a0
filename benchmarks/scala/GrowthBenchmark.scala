package io.dynastate.benchmarks

import scala.collection.mutable

/** A long-lived store: `rows` rows in one version, `warmup` versions, then `batches` versions of `updates` random rows
 * each, with maintenance before every `maintainEvery`-th, as Spark's maintenance thread would do it. The cost of the
 * `batches` is counted. It continues, uncounted, until the next snapshot is due: when most is stored, and must be
 * recovered.
 *
 * Partition 0 is this store. For comparison, partition 1 has the same changes without maintenance, and partition 2
 * the final rows in one version, and then a snapshot.
 */
object GrowthBenchmark {
  private val Maintained = 0
  private val Unmaintained = 1
  private val Fresh = 2
  /** Clean-up costs some units for removing versions from lists; a snapshot costs more than that. */
  private val SnapshotUnitsMin = 40L

  def main(args: Array[String]): Unit = {
    val arguments = new Arguments(args, Plan.Names ++ Set("maintainEvery"))
    val read = Plan.of(arguments)
    val plan = read.copy(loadRows = read.rows)
    val figures = new Figures
    OtherStore.make(plan)
    val counts = new Array[Int](plan.rows)
    val maintained = new LongRun(plan, new StateDriver(plan, Maintained, counts), arguments.int("maintainEvery"))
    maintained.runUntil(plan.warmup + plan.batches)
    maintained.runUntilSnapshotIsDue()
    maintained.report("maintained", figures)
    val unmaintained = new LongRun(plan, new StateDriver(plan, Unmaintained), Int.MaxValue)
    unmaintained.runUntil(maintained.batches)
    unmaintained.report("unmaintained", figures)
    freshSnapshot(plan, counts)
    figures("version") = maintained.version
    figures("counts") = plan.updates.toLong * maintained.batches
    figures("cycle") = maintained.longestCycle
    figures.printAndExit()
  }

  private def freshSnapshot(plan: Plan, counts: Array[Int]): Unit = {
    val conf = plan.conf + ("spark.sql.streaming.stateStore.minDeltasForSnapshot" -> "1")
    val driver = new StateDriver(plan.copy(conf = conf), Fresh, counts)
    val provider = driver.newProvider()
    driver.load(provider)
    provider.doSnapshotMaintenance()
    provider.close()
  }

  private final class LongRun(plan: Plan, driver: StateDriver, maintainEvery: Int) {
    private val provider = driver.newProvider()
    private val spent = mutable.Map.empty[String, Long]
    private val wholes = mutable.ArrayBuffer.empty[Double]
    private var maintenanceMs = 0.0
    private var lastSnapshot = 0
    var batches = 0
    /** The largest number of versions between two snapshots. */
    var longestCycle = 0

    driver.load(provider)

    def version: Long = 1L + batches

    def runUntil(until: Int): Unit = while (batches < until) batch()

    /** Exact to `maintainEvery` batches. */
    def runUntilSnapshotIsDue(): Unit = while (batches - lastSnapshot < longestCycle - 1) batch()

    private def batch(): Unit = {
      batches += 1
      val isCounted = batches > plan.warmup && batches <= plan.warmup + plan.batches
      if (batches % maintainEvery == 0) {
        val start = System.nanoTime()
        provider.doSnapshotMaintenance()
        provider.doCleanupMaintenance()
        if (isCounted) maintenanceMs += (System.nanoTime() - start) / 1e6
      }
      // The next commit reports the cost of maintenance.
      val times = driver.runBatch(provider, version - 1)
      if (times.metrics.getOrElse("dynastateMaintenanceWriteUnits", 0L) >= SnapshotUnitsMin) {
        if (lastSnapshot > 0) longestCycle = math.max(longestCycle, batches - lastSnapshot)
        lastSnapshot = batches
      }
      if (isCounted) {
        times.metrics.foreach { case (metric, value) => spent(metric) = spent.getOrElse(metric, 0L) + value }
        wholes += times.whole / 1e6
      }
    }

    def report(name: String, figures: Figures): Unit = {
      provider.close()
      figures(s"${name}_batch_ms") = Figures.median(wholes.toSeq)
      figures(s"${name}_batch_p95_ms") = Figures.percentile(wholes.toSeq, 0.95)
      figures(s"${name}_maintenance_ms") = maintenanceMs
      spent.toSeq.sortBy(_._1).foreach { case (metric, value) => figures(s"${name}_$metric") = value }
    }
  }
}
