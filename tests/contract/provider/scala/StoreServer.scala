package io.dynastate.conformance

import java.io.{BufferedReader, InputStreamReader}
import java.nio.charset.StandardCharsets.UTF_8
import java.util.{ArrayList => JArrayList, LinkedHashMap => JLinkedHashMap}

import scala.jdk.CollectionConverters._
import scala.util.Random
import scala.util.control.NonFatal

import com.fasterxml.jackson.databind.{JsonNode, ObjectMapper}
import io.dynastate.compat._

import org.apache.spark.sql.execution.streaming.state._
import org.apache.spark.sql.types._

/** Runs the commands on standard input, one JSON object a line, on a store of ours and on one of RocksDB's. Answers
 * each with one line on standard output: `{"ours": A, "rocksdb": A}` where A is `{"ok": answer}` or `{"error": what}`.
 *
 * {{{
 * begin root format retain   a checkpoint of its own and fresh providers; format 1 or 2; versions that stay in memory.
 *                            Ends what was begun before. Optional: `only` one of the two kinds of store;
 *                            `families` false; `conf`, an object
 * open version ids           a store to write, in place of the one that is open; ids is [ours, rocksdb], or null
 * batch changes              many of put, merge, remove and putList: [operation, family, key, value or values] each
 * dropFamily family
 * get | list family key      rows family      prefix family prefix      range family from until
 * commit                     answers [version, id, number of keys]
 * abort | maintain
 * snapshot | cleanUp         one half of maintenance
 * maintainBeside             maintenance while other things are done; its end is waited for by `await`
 * restart                    a fresh provider; of the query run `run`, if that is given
 * readAfresh version ids     all rows by family, through a new provider; what is open stays open
 * }}}
 *
 * Doubles travel as their bits, and a value as [number, length]: what is stored is a text of that length made of that
 * number, so that values of megabytes cost nothing here. The text of a number below zero cannot be compressed.
 */
object StoreServer {
  private val Value = Shapes.schema("number" -> LongType, "text" -> StringType)
  private val RangeKey = Shapes.schema("low" -> LongType, "high" -> DoubleType, "name" -> StringType)

  private def timed = if (hasTimes) Seq(Shapes.TimeLast.named("times").lists, Shapes.TimeFirst.named("index")) else Nil

  /** One family of each kind of key that this Spark has. */
  val Families: Seq[Shape] = (Seq(Shapes.Plain.named("hash"), Shapes.Prefixed.named("prefix"),
    Shapes.Plain.copy(name = "range", key = RangeKey, spec = RangeKeyScanStateEncoderSpec(RangeKey, Seq(0, 1))),
    Shapes.Plain.named("lists").lists) ++ timed).map(_.copy(value = Value))

  /** The family of an operator without families; in a Spark that has no others its keys have a prefix. */
  val OneFamily: Shape = (if (hasIds) Shapes.Plain else Shapes.Prefixed).copy(value = Value)

  def main(args: Array[String]): Unit = {
    val conf = args.map { argument =>
      val Array(name, value) = argument.split("=", 2)
      name -> value
    }.toMap
    val json = new ObjectMapper
    val in = new BufferedReader(new InputStreamReader(System.in, UTF_8))
    var sides = Seq.empty[Side]
    Iterator.continually(in.readLine()).takeWhile(_ != null).foreach { line =>
      val order = json.readTree(line)
      if (order.get("op").asText == "begin") {
        sides.foreach(_.end())
        val families = if (order.path("families").asBoolean(true)) Families else Seq(OneFamily)
        val more = order.path("conf").properties.asScala.map(each => each.getKey -> each.getValue.asText)
        sides = Seq("dynastate", "rocksdb").filter(kind => order.path("only").asText(kind) == kind).map { kind =>
          val subject = Subjects.of(kind, conf).head.copy(ids = order.get("format").asInt == 2)
          val retain = Map("spark.sql.streaming.maxBatchesToRetainInMemory" -> order.get("retain").asText,
            "spark.sql.streaming.stateStore.minDeltasForSnapshot" -> "1")
          new Side(new Scene(subject, s"${order.get("root").asText}/$kind", families.length > 1), families,
            retain ++ more, at = if (kind == "dynastate") 0 else 1)
        }
      }
      val answers = new JLinkedHashMap[String, Any]
      Seq("ours", "rocksdb").zip(sides).foreach { case (name, side) => answers.put(name, side.answer(order)) }
      println(json.writeValueAsString(answers))
    }
    System.exit(0)
  }

  /** One provider, and the store of it that is open. `at` is its place in lists of ids. */
  private final class Side(scene: Scene, families: Seq[Shape], conf: Map[String, String], at: Int) {
    private var provider: StateStoreProvider = fresh()
    private var store: StateStore = _
    private var tables = Map.empty[String, Table]
    private var thread: Thread = _

    def answer(order: JsonNode): java.util.Map[String, Any] = {
      val answer = new JLinkedHashMap[String, Any]
      try answer.put("ok", obey(order) match { case () => null; case result => result })
      catch { case NonFatal(e) => answer.put("error", Scene.told(e)) }
      answer
    }

    def end(): Unit = {
      await()
      abort()
      scene.close()
    }

    private def obey(order: JsonNode): Any = {
      def table = tables(order.get("family").asText)
      def key = keyOf(table, order.get("key"))
      order.get("op").asText match {
        case "begin" => null
        case "open" => open(order.get("version").asLong, idOf(order))
        case "batch" => order.get("changes").asScala.foreach(change)
        case "dropFamily" => dropFamily(table.shape)
        case "get" => shownValue(table.get(key))
        case "list" => listed(table.list(key).map(shownValue))
        case "rows" => pairs(if (table.shape.multiple) table.allValues else table.rows)
        case "prefix" =>
          val prefix = keyOf(table, order.get("prefix"))
          pairs(if (table.shape.multiple) table.allPrefixed(prefix) else table.prefixed(prefix))
        case "range" =>
          val Seq(from, until) =
            Seq("from", "until").map(end => Option(order.get(end)).filterNot(_.isNull).map(keyOf(table, _)))
          pairs(if (table.shape.multiple) table.allInRange(from, until) else table.range(from, until))
        case "commit" => commit()
        case "abort" => abort()
        case "restart" =>
          await()
          abort()
          provider.close()
          provider = fresh(order.path("run").asText(newRun))
        case "snapshot" => provider.doSnapshotMaintenance()
        case "cleanUp" => provider.doCleanupMaintenance()
        case "maintainBeside" => maintainBeside()
        case "await" => await()
        case "readAfresh" => readAfresh(order.get("version").asLong, idOf(order))
        // In format 1 RocksDB would read the snapshot of a version that was committed again since.
        case "maintain" => if (scene.subject.ids || scene.subject.kind == "dynastate") provider.doMaintenance()
      }
    }

    private def newRun: String = java.util.UUID.randomUUID().toString

    private def fresh(run: String = newRun): StateStoreProvider =
      scene.fresh(if (families.length > 1) Shapes.Plain else families.head, conf = conf, run = run)

    private def idOf(order: JsonNode): Option[String] =
      Option(order.get("ids")).filterNot(_.isNull).map(_.get(at).asText)

    private def open(version: Long, id: Option[String]): Unit = {
      abort()
      store = provider.getStore(version, id)
      tables = families.map(shape => shape.name -> scene.table(store, shape)).toMap
    }

    private def change(change: JsonNode): Unit = {
      val table = tables(change.get(1).asText)
      val key = keyOf(table, change.get(2))
      change.get(0).asText match {
        case "put" => table.put(key, valueOf(change.get(3)))
        case "merge" => table.merge(key, valueOf(change.get(3)))
        case "putList" => table.putList(key, change.get(3).asScala.map(valueOf).toSeq: _*)
        case "remove" => table.remove(key)
      }
    }

    private def maintainBeside(): Unit = {
      val side = provider
      thread = new Thread(() => {
        side.doSnapshotMaintenance()
        side.doCleanupMaintenance()
      })
      thread.start()
    }

    private def await(): Unit = if (thread != null) {
      thread.join()
      thread = null
    }

    private def readAfresh(version: Long, id: Option[String]): Any = {
      val reader = fresh()
      try {
        val store = reader.getStore(version, id)
        val content = new JLinkedHashMap[String, Any]
        families.map(scene.table(store, _)).foreach { table =>
          content.put(table.shape.name, pairs(if (table.shape.multiple) table.allValues else table.rows))
        }
        store.abort()
        content
      } finally reader.close()
    }

    private def dropFamily(shape: Shape): Unit = {
      store.removeColFamilyIfExists(shape.name)
      tables += shape.name -> scene.table(store, shape)
    }

    private def commit(): Any = {
      val version = store.commit()
      val id = store.getStateStoreCheckpointInfo().stateStoreCkptId
      val keys = store.metrics.numKeys
      store = null
      listed(Seq(version, id.orNull, keys))
    }

    private def abort(): Unit = if (store != null) {
      store.abort()
      store = null
    }
  }

  // ------------------------------------------------------------------------------------------------------- JSON and
  // rows

  /** A key, or the first columns of one. */
  private def keyOf(table: Table, key: JsonNode): Seq[Any] = key.asScala.map(plain).toSeq.zip(table.shape.key).map {
    case (null, _) => null
    case (number: Long, field) if field.dataType == IntegerType => number.toInt
    case (bits: Long, field) if field.dataType == DoubleType => java.lang.Double.longBitsToDouble(bits)
    case (other, _) => other
  }

  private def plain(node: JsonNode): Any = if (node.isNull) null else if (node.isTextual) node.asText else node.asLong

  private def valueOf(value: JsonNode): Seq[Any] =
    Seq(value.get(0).asLong, text(value.get(0).asLong, value.get(1).asInt))

  private def text(number: Long, length: Int): String =
    if (number < 0) new Random(number).alphanumeric.take(length).mkString
    else (s"$number." * (length / 2 + 1)).take(length)

  private def shownValue(value: Seq[Any]): Any = value match {
    case null => null
    case Seq(number: Long, string: String) =>
      if (string == text(number, string.length)) listed(Seq(number, string.length))
      else s"a broken text of $number: ${Scene.cut(string, 80)}"
  }

  private def pairs(rows: Seq[(Seq[Any], Seq[Any])]): Any = listed(rows.map { case (key, value) =>
    listed(Seq(listed(key.map {
        case double: Double => java.lang.Double.doubleToRawLongBits(double)
        case other => other
      }), shownValue(value)))
  })

  private def listed(values: Seq[Any]): JArrayList[Any] = new JArrayList[Any](java.util.Arrays.asList(values: _*))
}
