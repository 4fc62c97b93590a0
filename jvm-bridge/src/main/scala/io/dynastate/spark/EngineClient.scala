package io.dynastate.spark

import java.nio.ByteBuffer

import io.dynastate.DynastateException
import io.dynastate.bridge.{Connection, Sidecar}
import io.dynastate.memory.{Attempt, Version}

import org.apache.spark.sql.dynastate.internals.SparkInternals

/** One store's conversations with the engine. Safe for threads.
 *
 * @param rowVerifier of the rows that come from it, and of those that replace others there; null: they are not verified
 */
private[spark] final class EngineClient(val settings: ProviderSettings, rowVerifier: RowVerifier) {
  private[this] val sidecar = Sidecar.forPython(settings.python, settings.sidecar)

  def store: String = settings.store

  def deadlineSeconds: Long = settings.deadlineSeconds

  def lease(): Connection = sidecar.lease(settings.engine)

  /** Hold one conversation. */
  def converse[A](conversation: Connection => A): A = sidecar.converse(settings.engine)(conversation)

  def begin(connection: Connection, base: Version, attempt: Attempt): Unit =
    connection.begin(store, settings.run, base, attempt)

  /** Encoded changes, after the checksums of their rows are verified, if that is wanted. */
  def verified(changes: ByteBuffer): ByteBuffer = {
    if (rowVerifier != null) rowVerifier.verifyAll(changes)
    changes
  }

  /** Report a wrong setting, a missing table or a missing package before the first batch, not when it commits. */
  def check(): Unit =
    try converse(_.check(deadlineSeconds))
    catch { case e: DynastateException => throw SparkInternals.cannotLoad(e) }
}
