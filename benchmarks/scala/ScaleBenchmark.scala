package io.dynastate.benchmarks

import java.util.UUID
import java.util.concurrent.{Callable, Executors}

import scala.jdk.CollectionConverters._
import scala.jdk.OptionConverters._

/** Batches of many stores of one executor, as many at once as there are threads, and the processor time that they take.
 */
object ScaleBenchmark {

  def main(args: Array[String]): Unit = {
    val arguments = new Arguments(args, Plan.Names ++ Set("stores", "threads"))
    val plan = Plan.of(arguments)
    val numbers = 0 until arguments.int("stores", 1)
    val threads = Executors.newFixedThreadPool(arguments.int("threads", 1), daemon)
    val drivers = numbers.map(new StateDriver(plan, _))
    val run = UUID.randomUUID()
    val providers = drivers.map(_.newProvider(run))

    /** Do the same with each store; the time, ms. */
    def each(work: Int => Unit): Double = {
      val start = System.nanoTime()
      val tasks: Seq[Callable[Unit]] = numbers.map(store => () => work(store))
      threads.invokeAll(tasks.asJava).forEach(_.get())
      (System.nanoTime() - start) / 1e6
    }

    def batch(number: Long): (Double, Double) = {
      val expected = drivers.map(_.prepareBatch())
      val before = Memory.cpuMs
      val took = each(store => drivers(store).runPrepared(providers(store), number, expected(store)))
      (took, Memory.cpuMs - before)
    }

    each(store => drivers(store).load(providers(store)))
    val first = plan.loadBatches.toLong + plan.warmup
    (plan.loadBatches.toLong until first).foreach(batch)
    val before = sidecars()
    val batches = (first until plan.lastVersion).map(batch)
    val ofEach = sidecars().map { case (pid, ms) => ms - before(pid) }
    val commits = numbers.size * plan.batches.toDouble
    val figures = new Figures
    figures("batch_ms") = Figures.median(batches.map(_._1))
    figures("batch_p95_ms") = Figures.percentile(batches.map(_._1), 0.95)
    figures("jvm_ms") = batches.map(_._2).sum / commits
    figures("sidecar_ms") = ofEach.sum / commits
    figures("busiest_ms") = ofEach.maxOption.getOrElse(0.0) / commits // Spark's own stores have none
    figures("processes") = ofEach.size
    providers.foreach(_.close())
    figures.printAndExit()
  }

  /** A thread that does not outlive a failure. */
  private def daemon(work: Runnable): Thread = {
    val thread = new Thread(work)
    thread.setDaemon(true)
    thread
  }

  /** Processor time of each sidecar so far, ms, by process id. */
  private def sidecars(): Map[Long, Double] =
    Memory.pythons().flatMap(python =>
      python.info.totalCpuDuration.toScala.map(used => python.pid -> used.toNanos / 1e6)).toMap
}
