package io.dynastate.core

import java.io.{DataInputStream, IOException}
import java.nio.{ByteBuffer, ByteOrder}
import java.nio.charset.StandardCharsets.UTF_8

/**
 * Frames between the JVM and Python (docs/protocol.md, version 1). No I/O but `readFrame`.
 *
 * {{{ frame := length:u32 type:u8 body }}}
 */
object Protocol {
  val Version = 1
  val TokenBytes = 32
  val FrameBytesMax: Int = 64 * 1024 * 1024 + 4096

  val Hello = 1
  val Open = 2
  val Begin = 3
  val Append = 4
  val Commit = 5
  val Abort = 6
  val Changes = 7
  val Snapshot = 8
  val Bucket = 9
  val SnapshotEnd = 10
  val CleanUp = 11
  val Find = 12
  val Read = 13
  val Check = 14
  val Whole = 15
  val Welcome = 64
  val Rows = 65
  val Opened = 66
  val Committed = 67
  val Found = 68
  val ChangesOf = 69
  val Deltas = 70
  val Wanted = 71
  val Maintained = 72
  val Content = 73
  val Checked = 74
  val Error = 127

  /** Bytes before the run in an APPEND frame: header and three numbers. */
  val AppendHeadBytes: Int = 5 + 12

  def hello(token: Array[Byte], packageVersion: String, settings: String): ByteBuffer =
    frame(Hello, 2 + TokenBytes + textBytes(packageVersion) + textBytes(settings)) { out =>
      out.putShort(Version.toShort).put(token)
      putText(out, packageVersion)
      putText(out, settings)
    }

  def open(store: String, version: Long, attempt: Attempt, have: Seq[(Long, Attempt)]): ByteBuffer =
    frame(Open, textBytes(store) + 8 + 16 + 2 + 24 * have.length) { out =>
      putText(out, store)
      out.putLong(version)
      attempt.writeTo(out)
      out.putShort(have.length.toShort)
      have.foreach { case (held, by) => out.putLong(held); by.writeTo(out) }
    }

  def find(store: String, version: Long, attempt: Attempt): ByteBuffer =
    frame(Find, textBytes(store) + 8 + 16) { out =>
      putText(out, store)
      out.putLong(version)
      attempt.writeTo(out)
    }

  def read(store: String, version: Long, attempt: Attempt, bits: Int, bucket: Int): ByteBuffer =
    frame(Read, textBytes(store) + 8 + 16 + 1 + 4) { out =>
      putText(out, store)
      out.putLong(version)
      attempt.writeTo(out)
      out.put(bits.toByte).putInt(bucket)
    }

  def changes(store: String, first: Long, last: Long, attempt: Attempt): ByteBuffer =
    frame(Changes, textBytes(store) + 16 + 16) { out =>
      putText(out, store)
      out.putLong(first).putLong(last)
      attempt.writeTo(out)
    }

  def begin(store: String, run: String, checkpoint: String, base: Long, parent: Attempt, attempt: Attempt): ByteBuffer =
    frame(Begin, textBytes(store) + textBytes(run) + textBytes(checkpoint) + 8 + 32) { out =>
      Seq(store, run, checkpoint).foreach(putText(out, _))
      out.putLong(base)
      parent.writeTo(out)
      attempt.writeTo(out)
    }

  /** Everything of an APPEND frame but the run, which follows it. */
  def appendHead(records: Int, hashMin: Int, hashMax: Int, runBytes: Int): ByteBuffer = {
    val out = ByteBuffer.allocate(AppendHeadBytes).order(ByteOrder.LITTLE_ENDIAN)
    out.putInt(checked(1 + 12 + runBytes)).put(Append.toByte).putInt(records).putInt(hashMin).putInt(hashMax)
    out.flip()
  }

  def commit(keys: Array[Long], schema: String): ByteBuffer = frame(Commit, keysBytes(keys) + textBytes(schema)) { out =>
    putKeys(out, keys)
    putText(out, schema)
  }

  def check(): ByteBuffer = frame(Check, 0)(_ => ())

  def abort(): ByteBuffer = frame(Abort, 0)(_ => ())

  def snapshot(store: String, run: String, version: Long, attempt: Attempt, stateBytes: Long, minDeltas: Int): ByteBuffer =
    frame(Snapshot, textBytes(store) + textBytes(run) + 8 + 16 + 8 + 4) { out =>
      Seq(store, run).foreach(putText(out, _))
      out.putLong(version)
      attempt.writeTo(out)
      out.putLong(stateBytes).putInt(minDeltas)
    }

  def whole(
      store: String, run: String, checkpoint: String, version: Long, attempt: Attempt, stateBytes: Long, keys: Array[Long], schema: String): ByteBuffer =
    frame(Whole, Seq(store, run, checkpoint, schema).map(textBytes).sum + 8 + 16 + 8 + keysBytes(keys)) { out =>
      Seq(store, run, checkpoint).foreach(putText(out, _))
      out.putLong(version)
      attempt.writeTo(out)
      out.putLong(stateBytes)
      putKeys(out, keys)
      putText(out, schema)
    }

  def bucket(number: Int): ByteBuffer = frame(Bucket, 4)(_.putInt(number))

  def snapshotEnd(): ByteBuffer = frame(SnapshotEnd, 0)(_ => ())

  def cleanUp(store: String, run: String, version: Long, attempt: Attempt, retain: Int, least: Int, most: Int): ByteBuffer =
    frame(CleanUp, textBytes(store) + textBytes(run) + 8 + 16 + 12) { out =>
      Seq(store, run).foreach(putText(out, _))
      out.putLong(version)
      attempt.writeTo(out)
      out.putInt(retain).putInt(least).putInt(most)
    }

  /** A frame as it arrives; `body` is little-endian and stands at its beginning. */
  final class Frame(val frameType: Int, val body: ByteBuffer)

  def readFrame(in: DataInputStream): Frame = {
    val length = Integer.reverseBytes(in.readInt())
    if (length < 1 || length > FrameBytesMax) throw new IOException(s"a frame has an impossible length: $length")
    val frameType = in.readUnsignedByte()
    val body = new Array[Byte](length - 1)
    in.readFully(body)
    new Frame(frameType, ByteBuffer.wrap(body).order(ByteOrder.LITTLE_ENDIAN))
  }

  def takeText(body: ByteBuffer): String = {
    val length = body.getInt
    if (length < 0 || length > body.remaining) throw new IOException(s"a text is longer than its frame: $length")
    val text = new String(body.array, body.arrayOffset + body.position(), length, UTF_8)
    body.position(body.position() + length)
    text
  }

  def takeCounters(body: ByteBuffer): Map[String, Long] =
    Seq.fill(body.getShort & 0xFFFF)(takeText(body) -> body.getLong).toMap

  /** Keys by column family; those that are not named have none. */
  def takeKeys(body: ByteBuffer): Array[Long] = {
    val counts = Seq.fill(body.getShort & 0xFFFF)((body.getShort & 0xFFFF) -> body.getLong)
    val keys = new Array[Long](counts.map(_._1 + 1).maxOption.getOrElse(0))
    counts.foreach { case (family, count) => keys(family) = count }
    keys
  }

  private def frame(frameType: Int, bodyBytes: Int)(fill: ByteBuffer => Unit): ByteBuffer = {
    val out = ByteBuffer.allocate(5 + bodyBytes).order(ByteOrder.LITTLE_ENDIAN)
    out.putInt(checked(1 + bodyBytes)).put(frameType.toByte)
    fill(out)
    out.flip()
  }

  private def checked(length: Int): Int = {
    if (length < 1 || length > FrameBytesMax) {
      throw new DynastateException(ErrorKind.Configuration, s"a message to the sidecar is too large bytes=$length most=$FrameBytesMax")
    }
    length
  }

  private def keysBytes(keys: Array[Long]): Int = 2 + 10 * keys.length

  private def putKeys(out: ByteBuffer, keys: Array[Long]): Unit = {
    out.putShort(keys.length.toShort)
    keys.indices.foreach(family => out.putShort(family.toShort).putLong(keys(family)))
  }

  private def textBytes(text: String): Int = 4 + text.getBytes(UTF_8).length

  private def putText(out: ByteBuffer, text: String): Unit = {
    val bytes = text.getBytes(UTF_8)
    out.putInt(bytes.length).put(bytes)
  }
}
