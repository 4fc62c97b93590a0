package io.dynastate.memory

import java.nio.ByteBuffer
import java.util.UUID

/** A random 128-bit id of one task's try to make one version. `Attempt.None` is not an attempt, or any. */
final case class Attempt(high: Long, low: Long) {
  /** 32 hex digits, as in keys of the tables and in what the sidecar logs. */
  override def toString: String = checkpointId.replace("-", "")

  /** The form Spark sees: a UUID. */
  def checkpointId: String = new UUID(high, low).toString

  def writeTo(buffer: ByteBuffer): Unit = {
    // The bytes of an attempt are in the order of its hex digits, although numbers around them are little-endian.
    buffer.putLong(java.lang.Long.reverseBytes(high)).putLong(java.lang.Long.reverseBytes(low))
  }
}

object Attempt {
  val None: Attempt = Attempt(0, 0)

  def random(): Attempt = of(UUID.randomUUID())

  /** The attempt that a checkpoint id names, if it is one of ours. Zeros are not: they mean any attempt. */
  def parse(text: String): Option[Attempt] =
    try Some(of(UUID.fromString(text))).filter(attempt => attempt.checkpointId == text && attempt != None)
    catch { case _: IllegalArgumentException => scala.None }

  def readFrom(buffer: ByteBuffer): Attempt =
    Attempt(java.lang.Long.reverseBytes(buffer.getLong), java.lang.Long.reverseBytes(buffer.getLong))

  private def of(id: UUID): Attempt = Attempt(id.getMostSignificantBits, id.getLeastSignificantBits)
}
