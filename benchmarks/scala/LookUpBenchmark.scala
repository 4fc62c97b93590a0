package io.dynastate.benchmarks

/** A query that ends with a snapshot of its initial load, and all its batches after that. `ColdLookUpBenchmark` opens
 * it.
 */
object DeltasBenchmark {

  def main(args: Array[String]): Unit = {
    val plan = Plan.of(new Arguments(args, Plan.Names))
    val figures = new Figures
    leave(ColdLookUpBenchmark.otherPlan(plan), ColdLookUpBenchmark.OtherPartition)
    leave(plan, 0)
    figures("version") = plan.lastVersion
    figures.printAndExit()
  }

  private def leave(plan: Plan, partition: Int): Unit = {
    val driver = new StateDriver(plan, partition)
    val provider = driver.newProvider()
    driver.load(provider)
    provider.doSnapshotMaintenance()
    (0 until plan.warmup + plan.batches).foreach(batch => driver.runBatch(provider, plan.loadBatches + batch))
    provider.close()
  }
}

/** Gets random rows, in a fresh process, of a store that another one left, and commits a batch after them. A smaller
 * store of the same kind is opened several times before: classes and the sidecar are warm by then.
 */
object ColdLookUpBenchmark {
  val OtherPartition = 9
  private val Warmup = 5
  private val WarmupGets = 100

  def main(args: Array[String]): Unit = {
    val arguments = new Arguments(args, Plan.Names ++ Set("version", "gets", "puts"))
    val plan = Plan.of(arguments)
    val figures = new Figures
    val other = otherPlan(plan)
    (1 to Warmup).foreach { turn =>
      val driver = new StateDriver(other, OtherPartition)
      driver.replayBatches()
      val provider = driver.newProvider()
      driver.lookUp(provider, other.lastVersion, WarmupGets, puts = 0, turn.toLong)
      provider.close()
    }
    val driver = new StateDriver(plan, 0)
    driver.replayBatches()
    System.gc()
    val provider = driver.newProvider()
    val found = driver.lookUp(provider, arguments.long("version", 0), arguments.int("gets", 500),
      arguments.int("puts", 2000), plan.seed)
    val later = found.gets.tail
    figures("first_get_ms") = found.gets.head
    figures("later_p50_ms") = Figures.median(later)
    figures("later_p95_ms") = Figures.percentile(later, 0.95)
    figures("later_max_ms") = later.max
    figures("next_15_p50_ms") = Figures.median(later.take(15))
    figures("all_gets_ms") = found.gets.sum
    figures("commit_ms") = found.commit
    figures("mb_read") = found.metrics.getOrElse("dynastateBytesRead", 0L) / 1e6
    figures("buckets_read") = found.metrics.getOrElse("dynastateBucketsRead", 0L)
    figures("requests") = found.metrics.getOrElse("dynastateRequests", 0L)
    provider.close()
    figures.printAndExit()
  }

  def otherPlan(plan: Plan): Plan = {
    val rows = math.min(plan.rows, 100000)
    plan.copy(rows = rows, loadRows = rows / 2, updates = rows / 10, batches = 8, warmup = 0)
  }
}
