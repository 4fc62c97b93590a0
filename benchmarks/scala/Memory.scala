package io.dynastate.benchmarks

import java.lang.management.ManagementFactory
import java.nio.file.{Files, NoSuchFileException, Paths}

import scala.jdk.CollectionConverters._
import scala.jdk.OptionConverters._
import scala.util.Try

/** Memory and processor time of this process, and of the sidecar below it. */
private[benchmarks] object Memory {

  /** Bytes that this process has written to disk so far, or left to the kernel to write. */
  def writtenBytes: Long =
    Files.readAllLines(Paths.get("/proc/self/io")).asScala
      .collectFirst { case line if line.startsWith("write_bytes: ") => line.drop("write_bytes: ".length).toLong }
      .get

  /** User and system time of this process so far, all its threads, ms. */
  def cpuMs: Double =
    ManagementFactory.getOperatingSystemMXBean.asInstanceOf[
      com.sun.management.OperatingSystemMXBean].getProcessCpuTime / 1e6

  /** Wait until this process rests: the collector has run, and the JVM's compiler has done what was queued. What the
   * benchmark did before, to make rows and to warm up, then takes no processor time from what is measured.
   */
  def rest(): Unit = {
    System.gc()
    var before = cpuMs
    var (rests, slices) = (0, 0)
    while (rests < 3 && slices < RestSlicesMax) {
      Thread.sleep(RestSliceMs)
      val now = cpuMs
      rests = if (now - before < RestSliceMs / 10) rests + 1 else 0
      slices += 1
      before = now
    }
  }

  private val RestSliceMs = 100L
  private val RestSlicesMax = 100

  /** User and system time of the sidecar so far, ms; 0 when there is none. */
  def sidecarCpuMs: Long = pythons().flatMap(_.info.totalCpuDuration.toScala).map(_.toMillis).sum

  /** The Python processes below this one. */
  def pythons(): Seq[ProcessHandle] = {
    // A process may end during the walk; the next walk finds the rest.
    Try {
      ProcessHandle.current().descendants().iterator().asScala
        .filter(_.info.command.toScala.exists(_.contains("python")))
        .toSeq
    }.getOrElse(Seq.empty)
  }

  /** Reachable heap: the least that is in use right after one of five garbage collections. Other threads make garbage
   * meanwhile.
   */
  def reachableHeap(): Long = {
    val used = (1 to 5).map { _ =>
      System.gc()
      val now = ManagementFactory.getMemoryMXBean.getHeapMemoryUsage.getUsed
      Thread.sleep(100)
      now
    }
    used.min
  }

  /** A `kB` line of /proc/PID/status; 0 without the process or the line. */
  def status(pid: Long, name: String): Long = {
    try {
      Files.readAllLines(Paths.get(s"/proc/$pid/status")).asScala
        .find(_.startsWith(name + ":"))
        .map(_.replaceAll("[^0-9]", "").toLong * 1024)
        .getOrElse(0L)
    } catch {
      case _: NoSuchFileException => 0L
      case _: java.io.IOException => 0L
    }
  }
}

/** Monitors the resident memory of the Python processes below this one, every 50 ms, in a daemon thread. It reads the
 * kernel's own high-water mark (VmHWM), so a peak between two samples is not missed. The list of processes is refreshed
 * once a second only: that walk over /proc costs milliseconds.
 */
private[benchmarks] final class SidecarWatch extends AutoCloseable {
  private val SampleMs = 50L
  private val SamplesPerWalk = 20

  @volatile private var stopped = false
  @volatile private var peak = 0L
  @volatile private var handles = Seq.empty[ProcessHandle]

  private val thread = new Thread(() => run(), "sidecar-watch")
  thread.setDaemon(true)
  thread.start()

  /** The sidecar's peak so far, even if it started after the last walk; 0 without a sidecar. */
  def peakBytes: Long = synchronized {
    walk()
    sample()
    peak
  }

  /** User and system time of the sidecar so far, ms. */
  def cpuMs: Long = handles.flatMap(_.info.totalCpuDuration.toScala).map(_.toMillis).sum

  override def close(): Unit = stopped = true

  private def run(): Unit = {
    var turn = 0
    while (!stopped) {
      if (turn % SamplesPerWalk == 0) walk()
      sample()
      turn += 1
      Thread.sleep(SampleMs)
    }
  }

  private def walk(): Unit = synchronized {
    handles = Memory.pythons()
  }

  private def sample(): Unit = synchronized {
    peak = math.max(peak, handles.map(handle => Memory.status(handle.pid, "VmHWM")).sum)
  }
}
