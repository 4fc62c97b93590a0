package io.dynastate.bridge

import java.io.{DataInputStream, IOException}
import java.nio.{ByteBuffer, ByteOrder}
import java.nio.charset.StandardCharsets.UTF_8

import io.dynastate.{DynastateException, ErrorKind}
import io.dynastate.memory.Attempt

/** Frames between the JVM and Python (docs/protocol.md, version 2). Only `readFrame` does I/O.
 *
 * {{{ frame := length:u32 type:u8 body }}}
 */
object Protocol {
  val Version = 2
  val TokenBytes = 32
  val FrameBytesMax: Int = 64 * 1024 * 1024 + 4096
  val FileBytesMax: Int = 512 * 1024 * 1024

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
  val Import = 15
  val Flush = 16
  val Added = 17
  val Run = 18
  val FilePut = 19
  val FileGet = 20
  val FileList = 21
  val FileDelete = 22
  val CheckpointRead = 23
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
  val Packed = 75
  val Held = 76
  val Stored = 77
  val File = 78
  val Files = 79
  val CheckpointFile = 80
  val Error = 127

  /** The most that is read or written at once: the JDK keeps a direct buffer as large as the largest per thread. */
  val SliceBytes: Int = 256 * 1024

  /** Bytes before the changes in an APPEND frame: header and three numbers. */
  val AppendHeadBytes: Int = 5 + 12

  // The frames that the JVM sends, by the fields of docs/protocol.md.
  def hello(token: Array[Byte], packageVersion: String, settings: String): ByteBuffer =
    frame(Hello, Version.toShort, token, packageVersion, settings)
  def open(store: String, version: Long, attempt: Attempt, have: Seq[(Long, Attempt)]): ByteBuffer =
    frame(Open, store, version, attempt, have)
  def run(run: QueryRun): ByteBuffer = frame(Run, run.id, run.queryId, run.checkpoint)
  def find(store: String, version: Long, attempt: Attempt): ByteBuffer = frame(Find, store, version, attempt)
  def read(store: String, version: Long, attempt: Attempt, snapshot: Long, held: Long, heldAttempt: Attempt, bits: Int,
      buckets: Seq[Int]): ByteBuffer =
    frame(Read, store, version, attempt, snapshot, held, heldAttempt, bits.toByte, buckets.map(_.toShort))
  def changes(store: String, first: Long, last: Long, attempt: Attempt): ByteBuffer =
    frame(Changes, store, first, last, attempt)
  def begin(store: String, run: QueryRun, base: Long, parent: Attempt, attempt: Attempt): ByteBuffer =
    frame(Begin, store, run.id, run.queryId, run.checkpoint, base, parent, attempt)
  def commit(keys: Array[Long], schema: String): ByteBuffer = frame(Commit, byFamily(keys), schema)
  def flush(): ByteBuffer = frame(Flush)
  def added(values: Long): ByteBuffer = frame(Added, values)
  def check(): ByteBuffer = frame(Check)
  def abort(): ByteBuffer = frame(Abort)
  def snapshot(store: String, runId: String, version: Long, attempt: Attempt, stateBytes: Long,
      minDeltas: Int): ByteBuffer = frame(Snapshot, store, runId, version, attempt, stateBytes, minDeltas)
  def importVersion(store: String, run: QueryRun, version: Long, attempt: Attempt, stateBytes: Long, keys: Array[Long],
      schema: String): ByteBuffer =
    frame(Import, store, run.id, run.queryId, run.checkpoint, version, attempt, stateBytes, byFamily(keys), schema)
  def bucket(number: Int): ByteBuffer = frame(Bucket, number)
  def snapshotEnd(): ByteBuffer = frame(SnapshotEnd)
  def cleanUp(store: String, runId: String, version: Long, attempt: Attempt, retain: Int, least: Int,
      most: Int): ByteBuffer = frame(CleanUp, store, runId, version, attempt, retain, least, most)

  def filePut(checkpoint: String, file: String, overwrites: Boolean, data: Array[Byte]): ByteBuffer =
    frame(FilePut, checkpoint, file, (if (overwrites) 1 else 0).toByte, data)
  def fileGet(checkpoint: String, file: String): ByteBuffer = frame(FileGet, checkpoint, file)
  def fileList(checkpoint: String, folder: String): ByteBuffer = frame(FileList, checkpoint, folder)
  def fileDelete(checkpoint: String, files: Seq[String]): ByteBuffer = frame(FileDelete, checkpoint, files)
  def checkpointRead(checkpoint: String): ByteBuffer = frame(CheckpointRead, checkpoint)

  /** An APPEND frame except its changes, which follow it. */
  def appendHead(records: Int, hashMin: Int, hashMax: Int, changesBytes: Int): ByteBuffer = {
    val out = little(AppendHeadBytes)
    out.putInt(checked(1 + 12 + changesBytes, Append)).put(Append.toByte).putInt(records).putInt(hashMin).putInt(
      hashMax)
    out.flip()
  }

  /** A frame as it arrives; `body` is little-endian, at its first byte. */
  final class Frame(val frameType: Int, val body: ByteBuffer)

  /** @param array an array of at least so many bytes, for the body */
  def readFrame(in: DataInputStream, array: Int => Array[Byte] = new Array(_)): Frame = {
    val length = Integer.reverseBytes(in.readInt())
    val frameType = in.readUnsignedByte()
    if (length < 1 || length > most(frameType)) throw new IOException(s"a frame has an impossible length: $length")
    val end = length - 1
    val body = array(end)
    var at = 0
    while (at < end) {
      val bytes = math.min(end - at, SliceBytes)
      in.readFully(body, at, bytes)
      at += bytes
    }
    new Frame(frameType, ByteBuffer.wrap(body, 0, end).order(ByteOrder.LITTLE_ENDIAN))
  }

  def takeText(body: ByteBuffer): String = {
    val length = body.getInt
    if (length < 0 || length > body.remaining) throw new IOException(s"a text is longer than its frame: $length")
    val text = new String(body.array, body.arrayOffset + body.position(), length, UTF_8)
    body.position(body.position() + length)
    text
  }

  def takeCounters(body: ByteBuffer): Map[String, Long] =
    Seq.fill(body.getShort & 0xffff)(takeText(body) -> body.getLong).toMap

  /** Keys by column family; a family that is not listed has none. */
  def takeKeys(body: ByteBuffer): Array[Long] = {
    val counts = Seq.fill(body.getShort & 0xffff)((body.getShort & 0xffff) -> body.getLong)
    val keys = new Array[Long](counts.map(_._1 + 1).foldLeft(0)(math.max))
    counts.foreach { case (family, count) => keys(family) = count }
    keys
  }

  /** The records and changes of a ROWS or PACKED.
   *
   * @param array an array of at least so many bytes, for changes that are unpacked
   */
  def takeRows(frame: Frame, array: Int => Array[Byte] = new Array(_)): (Int, ByteBuffer) = {
    val records = frame.body.getInt
    (records,
      if (frame.frameType == Rows) frame.body
      else Codec.unpack(takeText(frame.body), frame.body.getInt, takeText(frame.body), frame.body, array))
  }

  /** A yes (1) or no (0). */
  def takeFlag(body: ByteBuffer): Boolean = body.get match {
    case 0 => false
    case 1 => true
    case other => throw new IOException(s"a flag is 1 or 0: $other")
  }

  /** The files and folders that a FILES lists. */
  def takeFiles(body: ByteBuffer): Seq[FileEntry] = Seq.fill(body.getShort & 0xffff)(
    FileEntry(takeText(body), isFolder = takeFlag(body), bytes = body.getLong, time = body.getLong))

  /** The file in a FILE, or None if it does not exist, and counters. */
  def takeFile(body: ByteBuffer): (Option[FileContent], Map[String, Long]) = {
    val (exists, time, counters) = (takeFlag(body), body.getLong, takeCounters(body))
    val data = new Array[Byte](body.remaining)
    body.get(data)
    (if (exists) Some(FileContent(data, time)) else None, counters)
  }

  /** The file in a CHECKPOINT_FILE. */
  def takeStoredFile(body: ByteBuffer): StoredFile = {
    val (path, bytes, time, hasData) = (takeText(body), body.getLong, body.getLong, takeFlag(body))
    val data = new Array[Byte](body.remaining)
    body.get(data)
    StoredFile(path, bytes, time, if (hasData) Some(data) else None)
  }

  /** A frame of fields, each as long as its type. */
  private def frame(frameType: Int, fields: Any*): ByteBuffer = {
    val arrays = fields.map(bytesOf)
    val bodyBytes = arrays.map(_.length).sum
    val length = checked(1 + bodyBytes, frameType)
    val out = little(5 + bodyBytes).putInt(length).put(frameType.toByte)
    arrays.foreach(out.put(_: Array[Byte]))
    out.flip()
  }

  /** A field; a text has its length as u32 before it, a sequence its number of elements as u16. */
  private def bytesOf(field: Any): Array[Byte] = field match {
    case number: Byte => Array(number)
    case number: Short => little(2).putShort(number).array
    case number: Int => little(4).putInt(number).array
    case number: Long => little(8).putLong(number).array
    case bytes: Array[Byte] => bytes
    case text: String =>
      val bytes = text.getBytes(UTF_8); little(4 + bytes.length).putInt(bytes.length).put(bytes).array
    case attempt: Attempt => val out = little(16); attempt.writeTo(out); out.array
    case (one, other) => bytesOf(one) ++ bytesOf(other)
    case elements: Seq[_] => bytesOf(elements.length.toShort) ++ elements.flatMap(bytesOf(_))
  }

  private def byFamily(keys: Array[Long]): Seq[(Short, Long)] =
    keys.indices.map(family => family.toShort -> keys(family))

  private def little(bytes: Int): ByteBuffer = ByteBuffer.allocate(bytes).order(ByteOrder.LITTLE_ENDIAN)

  /** The largest length of a frame. */
  private def most(frameType: Int): Int = frameType match {
    case FilePut | File | CheckpointFile => FileBytesMax + 4096
    case _ => FrameBytesMax
  }

  private def checked(length: Int, frameType: Int): Int = {
    if (length < 1 || length > most(frameType)) throw new DynastateException(ErrorKind.Configuration,
      s"a message to the sidecar is too large bytes=$length most=${most(frameType)}")
    length
  }
}
