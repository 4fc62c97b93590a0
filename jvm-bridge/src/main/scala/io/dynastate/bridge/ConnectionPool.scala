package io.dynastate.bridge

import java.util.{ArrayDeque, HashMap}
import java.util.concurrent.TimeUnit

/** Idle connections to one process, by settings. One that no task needed for a while is closed. Safe for threads. */
private[bridge] final class ConnectionPool(idleSeconds: Long) {
  import ConnectionPool._

  private[this] val idle = new HashMap[String, ArrayDeque[Idle]]

  /** The usable connection that was used last, if there is one. The others are closed: their process has just ended,
   * and did not find them here.
   */
  def take(settings: String): Option[Connection] = {
    var connection = poll(settings)
    while (connection != null && !connection.isUsable) {
      connection.close()
      connection = poll(settings)
    }
    Option(connection)
  }

  def add(settings: String, connection: Connection): Unit = synchronized(
    idle.computeIfAbsent(settings, _ => new ArrayDeque[Idle]).addFirst(new Idle(connection, System.nanoTime())))

  /** Close those that were not used for `idleSeconds`. */
  def closeIdle(): Unit = synchronized {
    val until = System.nanoTime() - TimeUnit.SECONDS.toNanos(idleSeconds)
    idle.values.forEach(each =>
      while (!each.isEmpty && each.peekLast.since - until < 0) each.pollLast().connection.close())
    idle.values.removeIf(_.isEmpty)
  }

  /** Java closes no channel by itself when it is garbage. */
  def close(): Unit = synchronized(idle.values.forEach(_.forEach(_.connection.close())))

  private def poll(settings: String): Connection = synchronized {
    val first = Option(idle.get(settings)).map(_.pollFirst()).orNull
    if (first == null) null else first.connection
  }
}

private object ConnectionPool {
  private final class Idle(val connection: Connection, val since: Long)
}
