package io.dynastate.tests

import java.io.{ByteArrayInputStream, DataInputStream, IOException}
import java.nio.{BufferUnderflowException, ByteBuffer, ByteOrder}
import java.nio.charset.StandardCharsets.UTF_8
import java.nio.file.{Files, Path}
import java.util.HexFormat

import scala.util.Random
import scala.util.control.NonFatal

import io.dynastate.{DynastateException, ErrorKind}
import io.dynastate.bridge.{Protocol, QueryRun}
import io.dynastate.memory.{Attempt, ChangeRecords, ChangeSink, EncodedRow, Row, RowMark, VersionOverlay, VersionTree}
import io.dynastate.spark.ProviderSettings
import org.apache.hadoop.conf.Configuration
import org.json4s.JsonAST.{JArray, JInt, JNull, JObject, JString, JValue}
import org.json4s.jackson.JsonMethods.parse

import org.apache.spark.unsafe.Platform

/** The Scala side against tests/vectors, which the Python tests read too. */
final class VectorChecks(checks: Checks, folder: Path) {
  import Checks._
  import checks.check

  private val format = parse(Files.readString(folder.resolve("format.json")))
  private val protocol = parse(Files.readString(folder.resolve("protocol.json")))
  private val frames = list(protocol \ "frames")

  def run(): Unit = {
    check("hashes of keys are those of the vectors, at any address") {
      list(format \ "key_hashes").foreach { vector =>
        val key = bytes(vector \ "key")
        val offsetKey = Array.fill[Byte](3)(7) ++ key
        val expected = long(vector \ "hash").toInt
        same(EncodedRow.hash(key, Platform.BYTE_ARRAY_OFFSET, key.length), expected, s"hash of ${text(vector \ "key")}")
        same(EncodedRow.hash(offsetKey, Platform.BYTE_ARRAY_OFFSET + 3, key.length), expected,
          s"hash of ${text(vector \ "key")} further on")
        same(EncodedRow.hash(Row.probe(key).bytes, 0), expected, s"hash of the row of ${text(vector \ "key")}")
      }
    }
    check("encoded changes are those of the vectors") {
      val vectors = list(format \ "runs").filter(vector => list(vector \ "changes").size == 1)
        .filter(vector => long(list(vector \ "changes").head \ "operation") == 0)
      same(vectors.size, 5, "vectors with one put or remove")
      vectors.foreach { vector =>
        val change = list(vector \ "changes").head
        same(hex(runOf(List(change))), text(vector \ "run"), text(vector \ "name"))
      }
    }
    check("compressed rows become the changes of the vectors, or an error") {
      list(protocol \ "blocks").foreach { vector =>
        val codec = text(vector \ "codec").getBytes(UTF_8)
        val block = bytes(vector \ "block")
        val item = "item=a".getBytes(UTF_8)
        val body = little(new Array[Byte](4 + 4 + codec.length + 4 + 4 + item.length + block.length))
        body.putInt(1).putInt(codec.length).put(codec).putInt(long(vector \ "raw_bytes").toInt).putInt(item.length).put(
          item).put(block).flip()
        val json =
          try {
            val (records, changes) = Protocol.takeRows(new Protocol.Frame(Protocol.Packed, body))
            same(records, 1)
            JString(hex(changes.array))
          } catch {
            case e: DynastateException =>
              same(e.kind, ErrorKind.Corrupt)
              require(e.getMessage.endsWith(" item=a"), e.getMessage)
              JNull
          }
        same(json, vector \ "changes", text(vector \ "name"))
      }
    }
    check("the worked example of the storage format") {
      val example = format \ "worked_example"
      val sink = new Recorded
      runOf(list(example \ "changes"), sink)
      // The example's records are not in the order of their hashes, in which we send them.
      val single = list(example \ "changes").map(change => hex(runOf(List(change))))
      same(single.mkString, text(example \ "run"), "run")
      same(hex(sink.run), single.reverse.mkString, "run, in the order of hashes")
      same(sink.bounds, List((long(example \ "records"), long(example \ "hash_min"), long(example \ "hash_max"))),
        "records and hashes")
    }
    check("SipHash-1-3 gives what CPython's hash of bytes does, with a key of zeros") {
      val expected = Seq(1 -> 7541581120933061747L, 7 -> 3389392686435873370L, 8 -> -1525574692105212182L,
        9 -> 8471974163824919394L, 15 -> -932606700130547222L, 16 -> -8542738587087157833L, 40 -> -7657190176164314618L)
      expected.foreach { case (length, hash) =>
        val bytes = Array.tabulate(length)(_.toByte)
        same(RowMark.sipHash(0, 0, bytes, Platform.BYTE_ARRAY_OFFSET, length), hash, s"of $length bytes")
      }
    }
    check("namespaces are those of the vectors") {
      list(format \ "namespaces").foreach { vector =>
        same(ProviderSettings.digest(ProviderSettings.locationOf(text(vector \ "state_root"),
              new Configuration(false))), text(vector \ "namespace"))
      }
    }
    check("the hex digits of attempts are in the order of their bytes") {
      val digits = "000102030405060708090a0b0c0d0e0f"
      val attempt = Attempt.readFrom(little(HexFormat.of().parseHex(digits)))
      same(attempt.toString, digits)
      same(attempt.checkpointId, "00010203-0405-0607-0809-0a0b0c0d0e0f")
      same(Attempt.parse(attempt.checkpointId), Some(attempt))
      same(Attempt.parse("not a uuid"), scala.None)
      same(Attempt.parse("1-2-3-4-5"), scala.None, "a UUID that is not written in full")
      val random = Attempt.random()
      val out = ByteBuffer.allocate(16).order(ByteOrder.LITTLE_ENDIAN)
      random.writeTo(out)
      same(hex(out.array), random.toString)
      same(Attempt.readFrom(little(out.array)), random)
    }
    check("frames to the sidecar are those of the vectors") {
      val pairs = frames.flatMap(vector => write(vector).map(vector -> _))
      same(pairs.map(each => text(each._1 \ "name")).toSet,
        Set("HELLO", "OPEN", "BEGIN", "APPEND", "COMMIT", "ABORT", "CHANGES", "SNAPSHOT", "BUCKET", "SNAPSHOT_END",
          "CLEAN_UP", "FIND", "READ", "CHECK", "IMPORT", "FLUSH", "ADDED", "RUN", "FILE_PUT", "FILE_GET",
          "FILE_LIST", "FILE_DELETE", "CHECKPOINT_READ"))
      pairs.foreach { case (vector, frame) => same(hex(frame), text(vector \ "frame"), text(vector \ "name")) }
    }
    check("frames from the sidecar are read as the vectors say") {
      val read = frames.filter(vector => long(vector \ "type") >= 64)
      same(read.map(vector => text(vector \ "name")).toSet,
        Set("WELCOME", "ROWS", "OPENED", "COMMITTED", "ERROR", "FOUND", "CHANGES_OF", "DELTAS", "WANTED", "MAINTAINED",
          "CONTENT", "CHECKED", "PACKED", "HELD", "STORED", "FILE", "FILES",
          "CHECKPOINT_FILE"))
      read.foreach(compare)
    }
    check("a frame of an impossible length is refused") {
      Seq("00000000 43", "ffffffff 43", "01100004 43").foreach { head =>
        val in = new DataInputStream(new ByteArrayInputStream(HexFormat.of().parseHex(head.replace(" ", ""))))
        mustFail("impossible length")(Protocol.readFrame(in))
      }
    }
    check("a frame that ends within a field is refused") {
      val whole = frames.filter(vector =>
        Set("WELCOME", "OPENED", "COMMITTED", "ERROR", "WANTED", "MAINTAINED", "CONTENT", "HELD", "STORED",
          "FILES")(
          text(vector \ "name")))
      whole.foreach { vector =>
        val body = bytes(vector \ "frame").drop(5)
        (0 until body.length).foreach { length =>
          val short = new Protocol.Frame(long(vector \ "type").toInt, little(body.take(length)))
          failure(fieldsOf(short))
        }
      }
    }
    check("any bytes are changes, or a corruption error") {
      val runs = list(format \ "runs").map(vector => bytes(vector \ "run")).filter(_.nonEmpty)
      val kinds = damages(20000, runs) { raw =>
        val changes = new ChangeRecords(little(raw))
        while (changes.advance()) {
          changes.hash
          changes.row.length
        }
      } { case e: DynastateException => e.kind }
      same(kinds, Set(ErrorKind.Corrupt))
    }
    check("any bytes are the body of a frame, or an error that closes the connection") {
      // Connection.converse closes the connection, and raises an error of ours.
      val whole = frames.filter(vector => long(vector \ "type") >= 64)
      whole.foreach { vector =>
        damages(500, List(bytes(vector \ "frame").drop(5)))(raw =>
          fieldsOf(new Protocol.Frame(long(vector \ "type").toInt, little(raw)))) {
          case _: BufferUnderflowException | _: IOException => 0
        }
      }
    }
  }

  private def runOf(fields: JValue): QueryRun =
    QueryRun(text(fields \ "run"), text(fields \ "query"), text(fields \ "checkpoint"))

  /** Read so many damaged inputs; refused ones must match `expected`. Returns the kinds of refusal. */
  private def damages(rounds: Int, wholes: List[Array[Byte]])(read: Array[Byte] => Any)(
      expected: PartialFunction[Throwable, Int]): Set[Int] = {
    val chance = new Random(VectorChecks.Seed)
    (1 to rounds).flatMap { round =>
      val raw = damaged(chance, wholes(chance.nextInt(wholes.size)))
      try {
        read(raw)
        scala.None
      } catch {
        case NonFatal(e) if expected.isDefinedAt(e) => Some(expected(e))
        case NonFatal(e) => throw new AssertionError(s"seed=${VectorChecks.Seed} round=$round bytes=${hex(raw)}: $e", e)
      }
    }.toSet
  }

  /** Bytes of a valid input, changed in up to four places. */
  private def damaged(chance: Random, whole: Array[Byte]): Array[Byte] =
    (0 until chance.nextInt(5)).foldLeft(whole) { (raw, _) =>
      val place = chance.nextInt(raw.length + 1)
      chance.nextInt(4) match {
        case 0 => raw.patch(place, Seq(chance.nextInt().toByte), 1)
        case 1 =>
          val extreme = VectorChecks.Extremes(chance.nextInt(VectorChecks.Extremes.length))
          raw.patch(place, ByteBuffer.allocate(4).order(ByteOrder.LITTLE_ENDIAN).putInt(extreme).array, 4)
        case 2 => raw.patch(place, Nil, 1 + chance.nextInt(9))
        case _ => raw.take(place)
      }
    }

  /** The frame that the JVM writes for a vector, if the JVM writes such frames. */
  private def write(vector: JValue): Option[Array[Byte]] = {
    val fields = vector \ "fields"
    val (store, run, checkpoint) = (fields \ "store", fields \ "run", fields \ "checkpoint")
    def number(name: String): Long = long(fields \ name)
    def id(name: String = "attempt"): Attempt = attempt(fields \ name)
    def keys: List[(Long, Long)] = list(fields \ "keys").map {
      case JArray(pair) => (long(pair.head), long(pair(1)))
      case other => throw new AssertionError(other)
    }
    val frame = long(vector \ "type").toInt match {
      case Protocol.Hello =>
        // The JVM sends its own version of the protocol only.
        if (number("protocol") == Protocol.Version)
          Protocol.hello(bytes(fields \ "token"), text(fields \ "package"), text(fields \ "settings"))
        else null
      case Protocol.Open =>
        val versions = list(fields \ "have").map(vector => (long(vector \ "version"), attempt(vector \ "attempt")))
        Protocol.open(text(store), number("version"), id(), versions)
      case Protocol.Begin => Protocol.begin(text(store), runOf(fields), number("base"), id("parent"), id())
      case Protocol.Append =>
        val head = Protocol.appendHead(number("records").toInt, number("hash_min").toInt, number("hash_max").toInt,
          bytes(run).length)
        same(head.remaining, Protocol.AppendHeadBytes)
        ByteBuffer.wrap(all(head) ++ bytes(run))
      case Protocol.Commit =>
        // The JVM numbers families without gaps.
        if (keys.map(_._1) == keys.indices.map(_.toLong))
          Protocol.commit(keys.map(_._2).toArray, text(fields \ "schema"))
        else null
      case Protocol.Abort => Protocol.abort()
      case Protocol.Flush => Protocol.flush()
      case Protocol.Run => Protocol.run(runOf(fields))
      case Protocol.Added => Protocol.added(number("values"))
      case Protocol.Changes => Protocol.changes(text(store), number("first"), number("last"), id())
      case Protocol.Find => Protocol.find(text(store), number("version"), id())
      case Protocol.Read =>
        Protocol.read(text(store), number("version"), id(), number("snapshot"), number("held"), id("held_attempt"),
          number("bits").toInt, list(fields \ "buckets").map(long(_).toInt))
      case Protocol.Snapshot =>
        Protocol.snapshot(text(store), text(run), number("version"), id(), number("state_bytes"),
          number("min_deltas").toInt)
      case Protocol.Import =>
        Protocol.importVersion(text(store), runOf(fields), number("version"), id(), number("state_bytes"),
          keys.map(_._2).toArray, text(fields \ "schema"))
      case Protocol.Bucket => Protocol.bucket(number("bucket").toInt)
      case Protocol.Check => Protocol.check()
      case Protocol.SnapshotEnd => Protocol.snapshotEnd()
      case Protocol.CleanUp => Protocol.cleanUp(text(store), text(run), number("version"), id(), number("retain").toInt,
          number("least").toInt, number("most").toInt)
      case Protocol.FilePut => Protocol.filePut(text(checkpoint), text(fields \ "file"), number("overwrites") == 1,
          bytes(fields \ "data"))
      case Protocol.FileGet => Protocol.fileGet(text(checkpoint), text(fields \ "file"))
      case Protocol.FileList => Protocol.fileList(text(checkpoint), text(fields \ "folder"))
      case Protocol.FileDelete => Protocol.fileDelete(text(checkpoint), list(fields \ "files").map(text))
      case Protocol.CheckpointRead => Protocol.checkpointRead(text(checkpoint))
      case _ => null
    }
    Option(frame).map(all)
  }

  private def compare(vector: JValue): Unit = {
    val in = new DataInputStream(new ByteArrayInputStream(bytes(vector \ "frame")))
    val frame = Protocol.readFrame(in)
    same(in.available, 0, "bytes after the frame")
    same(frame.frameType.toLong, long(vector \ "type"))
    same(fieldsOf(frame), vector \ "fields", text(vector \ "name"))
    same(frame.body.remaining, 0, "bytes after the last field")
  }

  /** The fields of a frame, read as the Connection reads them. */
  private def fieldsOf(frame: Protocol.Frame): JValue = {
    val body = frame.body
    def attempt(): JString = JString(Attempt.readFrom(body).toString.replace("-", ""))
    def pairs(counters: Map[String, Long]): JArray = JArray(counters.toList.sorted.map { case (name, value) =>
      JArray(List(JString(name), JInt(value)))
    })
    def counters(): JArray = pairs(Protocol.takeCounters(body))
    frame.frameType match {
      case Protocol.Welcome => JObject("package" -> JString(Protocol.takeText(body)))
      case Protocol.Rows =>
        val records = body.getInt
        val run = new Array[Byte](body.remaining)
        body.get(run)
        JObject("records" -> JInt(records), "run" -> JString(hex(run)))
      case Protocol.Packed =>
        val fields = List("records" -> JInt(body.getInt), "codec" -> JString(Protocol.takeText(body)),
          "raw_bytes" -> JInt(body.getInt), "item" -> JString(Protocol.takeText(body)))
        val block = new Array[Byte](body.remaining)
        body.get(block)
        JObject(fields :+ ("run" -> JString(hex(block))))
      case Protocol.Opened => JObject("counters" -> counters())
      case Protocol.Found => JObject("version" -> JInt(body.getLong), "attempt" -> attempt(),
          "base" -> JInt(body.getLong), "base_attempt" -> attempt(), "schema" -> JString(Protocol.takeText(body)))
      case Protocol.Checked => JObject()
      case Protocol.ChangesOf => JObject("version" -> JInt(body.getLong))
      case Protocol.Deltas =>
        JObject("snapshot" -> JInt(body.getLong), "after" -> JInt(body.getLong), "raw_bytes" -> JInt(body.getLong))
      case Protocol.Held => JObject("is_applied" -> JInt(if (Protocol.takeFlag(body)) 1 else 0))
      case Protocol.Wanted => JObject("base" -> JInt(body.getLong), "bits" -> JInt(body.get & 0xff))
      case Protocol.Content =>
        val bits = body.get & 0xff
        val keys = Protocol.takeKeys(body).toList.zipWithIndex.filter(_._1 > 0)
        JObject("bits" -> JInt(bits),
          "keys" -> JArray(keys.map { case (count, family) => JArray(List(JInt(family), JInt(count))) }))
      case Protocol.Maintained => JObject("counters" -> counters())
      case Protocol.Committed => JObject("version" -> JInt(body.getLong), "counters" -> counters())
      case Protocol.Error => JObject("kind" -> JInt(body.get & 0xff), "store" -> JString(Protocol.takeText(body)),
          "message" -> JString(Protocol.takeText(body)))
      case Protocol.Stored => JObject("is_stored" -> JInt(if (Protocol.takeFlag(body)) 1 else 0),
          "counters" -> counters())
      case Protocol.File =>
        val (file, counters) = Protocol.takeFile(body)
        JObject("exists" -> JInt(file.size), "time" -> JInt(file.fold(0L)(_.time)), "counters" -> pairs(counters),
          "data" -> JString(hex(file.fold(Array.emptyByteArray)(_.data))))
      case Protocol.Files => JObject("entries" -> JArray(Protocol.takeFiles(body).toList.map(entry =>
            JArray(List(JString(entry.name), JInt(if (entry.isFolder) 1 else 0), JInt(entry.bytes),
                JInt(entry.time))))))
      case Protocol.CheckpointFile =>
        val file = Protocol.takeStoredFile(body)
        JObject("file" -> JString(file.path), "bytes" -> JInt(file.bytes), "time" -> JInt(file.time),
          "has_data" -> JInt(file.data.size), "data" -> JString(hex(file.data.getOrElse(Array.emptyByteArray))))
      case other => throw new AssertionError(s"frame $other")
    }
  }

  /** The bytes that an overlay sends for changes; removed keys exist before. */
  private def runOf(changes: List[JValue], sink: Recorded = new Recorded): Array[Byte] = {
    val start = new VersionOverlay(VersionTree.empty(""), new Recorded)
    changes.filter(change => (change \ "value") == JNull).foreach(change => put(start, change, Array[Byte](1)))
    start.flush()
    val open = new VersionOverlay(start.fold(Attempt.random(), ""), sink)
    changes.foreach { change =>
      val key = bytes(change \ "key")
      if ((change \ "value") == JNull)
        open.remove(long(change \ "family").toInt, key, Platform.BYTE_ARRAY_OFFSET, key.length)
      else put(open, change, bytes(change \ "value"))
    }
    open.flush()
    sink.run
  }

  private def put(open: VersionOverlay, change: JValue, value: Array[Byte]): Unit = {
    val key = bytes(change \ "key")
    open.put(long(change \ "family").toInt, key, Platform.BYTE_ARRAY_OFFSET, key.length, value,
      Platform.BYTE_ARRAY_OFFSET, value.length)
  }

  private final class Recorded extends ChangeSink {
    var run: Array[Byte] = Array.emptyByteArray
    var bounds: List[(Long, Long, Long)] = Nil

    override def append(records: Int, hashMin: Int, hashMax: Int, chunk: Array[Byte], length: Int): Unit = {
      run = run ++ chunk.take(length)
      bounds = bounds :+ ((records.toLong, hashMin & 0xffffffffL, hashMax & 0xffffffffL))
    }
  }

  private def attempt(value: JValue): Attempt = Attempt.readFrom(little(bytes(value)))

  private def little(array: Array[Byte]): ByteBuffer = ByteBuffer.wrap(array).order(ByteOrder.LITTLE_ENDIAN)

  private def all(buffer: ByteBuffer): Array[Byte] = {
    val out = new Array[Byte](buffer.remaining)
    buffer.get(out)
    out
  }

  private def bytes(value: JValue): Array[Byte] = HexFormat.of().parseHex(text(value))

  private def hex(array: Array[Byte]): String = HexFormat.of().formatHex(array)

  private def text(value: JValue): String = value match {
    case JString(found) => new String(found.getBytes(UTF_8), UTF_8)
    case other => throw new AssertionError(s"not a text: $other")
  }

  private def long(value: JValue): Long = value match {
    case JInt(found) => found.toLong
    case other => throw new AssertionError(s"not a number: $other")
  }

  private def list(value: JValue): List[JValue] = value match {
    case JArray(found) => found
    case other => throw new AssertionError(s"not a list: $other")
  }
}

object VectorChecks {
  /** Of the choice of damage. */
  private val Seed = 20250107L
  private val Extremes = Array(0, 1, -1, -2, 0x7f, 0xff, 0x7fff, 0xffff, Int.MaxValue, Int.MinValue)
}
