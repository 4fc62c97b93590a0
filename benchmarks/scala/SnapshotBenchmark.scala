package io.dynastate.benchmarks

import scala.collection.mutable

/** Commits with and without a snapshot in the background: batches one after the other on a large store, first alone,
 * then while snapshot maintenance runs in its own thread.
 */
object SnapshotBenchmark {

  def main(args: Array[String]): Unit = {
    val plan = Plan.of(new Arguments(args, Plan.Names))
    val figures = new Figures
    val driver = new StateDriver(plan)
    val provider = driver.newProvider()
    driver.load(provider)
    var version = plan.loadBatches.toLong

    def batch(): BatchTimes = {
      version += 1
      driver.runBatch(provider, version - 1)
    }

    (1 to plan.warmup).foreach(_ => batch())
    report("alone", (1 to plan.batches).map(_ => batch()), figures)

    var snapshotMs = 0.0
    val snapshot = new Thread(
      () => {
        val start = System.nanoTime()
        provider.doSnapshotMaintenance()
        snapshotMs = (System.nanoTime() - start) / 1e6
      },
      "snapshot")
    val beside = mutable.ArrayBuffer.empty[BatchTimes]
    snapshot.start()
    while (snapshot.isAlive) beside += batch()
    snapshot.join()
    // The last one may have ended after the snapshot.
    val last = beside.remove(beside.length - 1)
    driver.check(beside.nonEmpty, "the snapshot was over before one batch was")
    report("beside", beside.toSeq, figures)
    figures("snapshot_ms") = snapshotMs
    // The next commit reports the cost of maintenance.
    figures("snapshot_write_units") =
      Seq(last, batch()).map(_.metrics.getOrElse("dynastateMaintenanceWriteUnits", 0L)).sum
    provider.close()
    figures.printAndExit()
  }

  private def report(name: String, batches: Seq[BatchTimes], figures: Figures): Unit = {
    val commits = Figures.millis(batches.map(_.commit))
    val wholes = Figures.millis(batches.map(_.whole))
    figures(s"${name}_batches") = batches.length
    figures(s"${name}_commit_ms") = Figures.median(commits)
    figures(s"${name}_commit_p95_ms") = Figures.percentile(commits, 0.95)
    figures(s"${name}_batch_ms") = Figures.median(wholes)
    figures(s"${name}_batch_p95_ms") = Figures.percentile(wholes, 0.95)
    figures(s"${name}_batch_max_ms") = wholes.max
    figures(s"${name}_batches_ms") = wholes.toArray
    figures(s"${name}_commits_ms") = commits.toArray
  }
}
