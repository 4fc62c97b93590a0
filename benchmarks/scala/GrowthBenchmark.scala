package io.dynastate.benchmarks

import scala.collection.mutable

/**
 * A store that lives long: `rows` rows in one version, then `batches` versions of `updates` random rows each, and maintenance
 * before every `maintainEvery`-th of them, as Spark's maintenance thread would do it meanwhile.
 *
 * Partition 0 is the one that lives so. Partition 1 goes through the same changes without any maintenance, and partition 2
 * gets the rows as they are in the end at once, and then a snapshot: what the first should be no worse than.
 */
object GrowthBenchmark {
  private val Maintained = 0
  private val Unmaintained = 1
  private val Fresh = 2

  def main(args: Array[String]): Unit = {
    val arguments = new Arguments(args, Plan.Names ++ Set("maintainEvery"))
    val read = Plan.of(arguments)
    val plan = read.copy(loadRows = read.rows, warmup = 0)
    val figures = new Figures
    OtherStore.make(plan)
    val counts = new Array[Int](plan.rows)
    live(plan, new StateDriver(plan, Maintained, counts), arguments.int("maintainEvery"), "maintained", figures)
    live(plan, new StateDriver(plan, Unmaintained), Int.MaxValue, "unmaintained", figures)
    val fresh = new StateDriver(plan.copy(conf = plan.conf + ("spark.sql.streaming.stateStore.minDeltasForSnapshot" -> "1")), Fresh, counts)
    val provider = fresh.newProvider()
    fresh.load(provider)
    provider.doSnapshotMaintenance()
    provider.close()
    figures("version") = plan.lastVersion
    figures("counts") = plan.countsAtEnd
    figures.printAndExit()
  }

  private def live(plan: Plan, driver: StateDriver, maintainEvery: Int, name: String, figures: Figures): Unit = {
    val provider = driver.newProvider()
    driver.load(provider)
    val spent = mutable.Map.empty[String, Long]
    val maintenance = mutable.ArrayBuffer.empty[Double]
    val batches = (1 to plan.batches).map { batch =>
      if (batch % maintainEvery == 0) {
        val start = System.nanoTime()
        provider.doSnapshotMaintenance()
        provider.doCleanupMaintenance()
        maintenance += (System.nanoTime() - start) / 1e6
      }
      // What maintenance cost is shown with the next commit, so nothing of it is lost.
      val times = driver.runBatch(provider, batch)
      times.metrics.foreach { case (metric, value) => spent(metric) = spent.getOrElse(metric, 0L) + value }
      times.whole / 1e6
    }
    provider.close()
    figures(s"${name}_batch_ms") = Figures.median(batches)
    figures(s"${name}_batch_p95_ms") = Figures.percentile(batches, 0.95)
    figures(s"${name}_maintenance_ms") = maintenance.sum
    spent.toSeq.sortBy(_._1).foreach { case (metric, value) => figures(s"${name}_$metric") = value }
  }
}
