package io.dynastate.benchmarks

import java.util.UUID
import java.util.concurrent.{Callable, Executors}

import scala.jdk.CollectionConverters._
import scala.jdk.OptionConverters._

import org.apache.spark.sql.execution.streaming.state.StateStoreProvider

/** Batches of many stores of one executor, as many at once as there are threads, and the processor time that they take.
 * With `large`, snapshots of all stores come before and after these batches, and `ScaleRestart` opens the last versions
 * in another process.
 */
object ScaleBenchmark {
  private val Mb = 1024.0 * 1024

  def main(args: Array[String]): Unit = {
    val arguments = new Arguments(args, Stores.Names)
    val plan = Plan.of(arguments)
    val figures = new Figures
    val memory = new SidecarWatch
    val stores = new Stores(plan, arguments)
    import stores.{drivers, each, maintain, providers}
    val isLarge = arguments.isSet("large")

    def batch(number: Long, isForced: Boolean = false): (Double, Double) = {
      val expected = drivers.map(_.prepareBatch())
      val before = Memory.cpuMs
      val took = each(store => drivers(store).runPrepared(providers(store), number, expected(store), isForced))
      (took, Memory.cpuMs - before)
    }

    figures("load_s") = each(store => drivers(store).load(providers(store))) / 1000
    if (isLarge) maintain()
    val first = plan.loadBatches.toLong + plan.warmup
    (plan.loadBatches.toLong until first).foreach(batch(_))
    val before = sidecars()
    val writtenBefore = Memory.writtenBytes
    val batches = (first until plan.lastVersion).map(batch(_))
    val ofEach = sidecars().map { case (pid, ms) => ms - before(pid) }
    val commits = drivers.size * plan.batches.toDouble
    figures("batch_ms") = Figures.median(batches.map(_._1))
    figures("batch_p95_ms") = Figures.percentile(batches.map(_._1), 0.95)
    figures("jvm_ms") = batches.map(_._2).sum / commits
    figures("sidecar_ms") = ofEach.sum / commits
    figures("busiest_ms") = ofEach.maxOption.getOrElse(0.0) / commits // Spark's own stores have none
    figures("processes") = ofEach.size
    figures("written_mb") = (Memory.writtenBytes - writtenBefore) / Mb / plan.batches
    if (isLarge) {
      var version = plan.lastVersion
      batch(version, isForced = true)
      val snapshots = new Thread(() => figures("snapshots_s") = maintain() / 1000)
      snapshots.start()
      val beside = Iterator.continually(snapshots.isAlive).takeWhile(identity).map { _ =>
        version += 1
        batch(version)._1
      }.toArray
      snapshots.join()
      figures("beside_batch_ms") = Figures.median(beside.toSeq)
      figures("beside_batch_max_ms") = beside.max
      figures("rss_mb") = Memory.status(ProcessHandle.current().pid, "VmRSS") / Mb
      figures("sidecar_rss_max_mb") = memory.peakBytes / Mb
      figures("version") = version + 1
      figures("ids") = drivers.flatMap(_.checkpointId).mkString(",")
    }
    providers.foreach(_.close())
    figures.printAndExit()
  }

  /** Processor time of each sidecar so far, ms, by process id. */
  private def sidecars(): Map[Long, Double] =
    Memory.pythons().flatMap(python =>
      python.info.totalCpuDuration.toScala.map(used => python.pid -> used.toNanos / 1e6)).toMap
}

/** The first batch of all stores, in a fresh process. */
object ScaleRestart {

  def main(args: Array[String]): Unit = {
    val arguments = new Arguments(args, Stores.Names ++ Set("version", "ids"))
    val plan = Plan.of(arguments)
    val version = arguments.long("version", 0)
    val stores = new Stores(plan, arguments)
    import stores.{drivers, each, providers}
    drivers.zip(arguments.text("ids").split(',')).foreach { case (driver, id) =>
      driver.replayBatches(batches = (version - plan.loadBatches).toInt)
      driver.checkpointId = Some(id)
    }
    val expected = drivers.map(_.prepareBatch())
    Memory.rest()
    val times = new Array[BatchTimes](drivers.size)
    val figures = new Figures
    figures("restart_batch_ms") = each(store =>
      times(store) = drivers(store).runPrepared(providers(store), version, expected(store)))
    val firstRows = Figures.millis(times.toSeq.map(each => each.open + each.firstGet))
    figures("restart_row_ms") = Figures.median(firstRows)
    figures("restart_row_max_ms") = firstRows.max
    providers.foreach(_.close())
    figures.printAndExit()
  }
}

/** Stores of one executor, and its threads. */
private final class Stores(plan: Plan, arguments: Arguments) {
  private val numbers = 0 until arguments.int("stores", 1)
  private val threads = Executors.newFixedThreadPool(arguments.int("threads", 1), daemon)
  val drivers: IndexedSeq[StateDriver] = numbers.map(new StateDriver(plan, _))
  private val run = UUID.randomUUID()
  val providers: IndexedSeq[StateStoreProvider] = drivers.map(_.newProvider(run))

  /** Do the same with each store; the time, ms. */
  def each(work: Int => Unit): Double = {
    val start = System.nanoTime()
    val tasks: Seq[Callable[Unit]] = numbers.map(store => () => work(store))
    threads.invokeAll(tasks.asJava).forEach(_.get())
    (System.nanoTime() - start) / 1e6
  }

  /** Snapshots of all stores, one after the other, as in Spark on few cores; the time, ms. */
  def maintain(): Double = {
    val start = System.nanoTime()
    providers.foreach(_.doSnapshotMaintenance())
    (System.nanoTime() - start) / 1e6
  }

  /** A thread that does not outlive a failure. */
  private def daemon(work: Runnable): Thread = {
    val thread = new Thread(work)
    thread.setDaemon(true)
    thread
  }
}

private object Stores {
  val Names: Set[String] = Plan.Names ++ Set("stores", "threads", "large")
}
