package io.dynastate.bridge

import java.util.concurrent.{ConcurrentHashMap, ConcurrentLinkedDeque}

/** Idle connections to one process, by their settings. Safe for threads. */
private[bridge] final class ConnectionPool {
  private[this] val idle = new ConcurrentHashMap[String, ConcurrentLinkedDeque[Connection]]

  /** A usable connection, if there is one. The others are closed: their process has just ended, and did not find them here. */
  def take(settings: String): Option[Connection] = {
    var connection = of(settings).pollFirst()
    while (connection != null && !connection.isUsable) {
      connection.close()
      connection = of(settings).pollFirst()
    }
    Option(connection)
  }

  def add(settings: String, connection: Connection): Unit = of(settings).addFirst(connection)

  /** Java closes no channel by itself when it is garbage. */
  def close(): Unit = idle.values.forEach(_.forEach(_.close()))

  private def of(settings: String): ConcurrentLinkedDeque[Connection] = idle.computeIfAbsent(settings, _ => new ConcurrentLinkedDeque[Connection])
}
