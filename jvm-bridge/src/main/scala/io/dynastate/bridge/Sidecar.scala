package io.dynastate.bridge

import java.nio.charset.StandardCharsets.UTF_8
import java.util.concurrent.ConcurrentHashMap
import java.util.concurrent.locks.ReentrantLock

import io.dynastate.{DynastateException, ErrorKind}
import org.slf4j.LoggerFactory

/** One of the engine's processes on this executor, by Python interpreter and number: started by the first store that
 * needs it, and again after it died. A store always has the same one. A connection belongs to one store from `lease` to
 * its `release`.
 */
final class Sidecar private (python: String, idleSeconds: Long) {
  /** Interruptible, so that a task which Spark kills does not wait for it. */
  private[this] val lock = new ReentrantLock
  private[this] var process: SidecarProcess = _
  private[this] var failure: DynastateException = _
  private[this] var failedAt = 0L

  /** A connection for these settings (a JSON object), new or used before. */
  def lease(settings: String): Connection = {
    val askedAt = System.nanoTime()
    lock.lockInterruptibly()
    val process =
      try running(askedAt)
      finally lock.unlock()
    process.connect(settings)
  }

  /** Hold one conversation. If it fails, the connection is closed, because half a conversation cannot be continued. */
  def converse[A](settings: String)(conversation: Connection => A): A = {
    val connection = lease(settings)
    var isOver = false
    try {
      val answer = conversation(connection)
      isOver = true
      answer
    } finally if (isOver) connection.release() else connection.close()
  }

  /** The process, started if there is none. A caller that waited here during a failed start gets its error; a later one
   * starts it again.
   */
  private[this] def running(askedAt: Long): SidecarProcess = {
    if (process == null || !process.isAlive) {
      if (failure != null && askedAt - failedAt < 0) throw failure
      if (process != null) {
        Sidecar.log.warn(s"sidecar died, a new one is started: ${process.exitReport}")
        process.end()
        process = null
      }
      try process = SidecarProcess.start(python, idleSeconds)
      catch {
        case e: DynastateException =>
          failure = e
          failedAt = System.nanoTime()
          throw e
      }
    }
    process
  }
}

object Sidecar {
  private val log = LoggerFactory.getLogger("io.dynastate.Sidecar")
  private val all = new ConcurrentHashMap[(String, Int), Sidecar]
  /** A connection that no task needed for so long is closed (docs/protocol.md). */
  private val IdleSeconds = 120L

  /** The version of this jar, which must be the Python package's. */
  lazy val packageVersion: String = {
    val resource = classOf[Connection].getResourceAsStream("/dynastate-version.txt")
    if (resource == null)
      throw new DynastateException(ErrorKind.Mismatch, "the jar has no version in it; build it with 'make setup'")
    try new String(resource.readAllBytes(), UTF_8).trim
    finally resource.close()
  }

  def forPython(python: String, number: Int = 0, idleSeconds: Long = IdleSeconds): Sidecar =
    all.computeIfAbsent((python, number), _ => new Sidecar(python, idleSeconds))
}
