package io.dynastate.spark

import io.dynastate.bridge.Connection
import io.dynastate.memory.{Attempt, Version}

import org.apache.spark.sql.execution.streaming.state.StateStoreErrors

/** The connection of one attempt, from its first changes to its end. Safe for threads: a task may end the attempt while
 * another thread, such as that of PySpark's state server, sends changes. No lock is held while it is leased, or while
 * anything is sent.
 */
private[spark] final class AttemptConnection(client: EngineClient, base: Version, attempt: Attempt) {
  private[this] var connection: Connection = _
  private[this] var isEnded = false

  /** The connection; the first call begins the attempt in the engine. After `end` there is none. */
  def get(): Connection = {
    val current = synchronized {
      if (isEnded) refuse()
      connection
    }
    if (current != null) current else begin()
  }

  /** End its use: whoever called `get` before may still be sending. Null: the engine knows nothing of the attempt. */
  def end(): Connection = synchronized {
    isEnded = true
    val last = connection
    connection = null
    last
  }

  private def begin(): Connection = {
    val lease = client.lease()
    val isLate = synchronized {
      if (!isEnded) connection = lease
      isEnded
    }
    if (isLate) {
      lease.release()
      refuse()
    }
    client.begin(lease, base, attempt)
    lease
  }

  private def refuse(): Nothing =
    throw StateStoreErrors.stateStoreOperationOutOfOrder("a change is written after its attempt has ended")
}
