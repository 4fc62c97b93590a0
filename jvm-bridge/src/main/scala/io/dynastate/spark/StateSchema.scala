package io.dynastate.spark

import io.dynastate.core.{DynastateException, Entry, ErrorKind}
import org.json4s.JsonAST.{JArray, JBool, JField, JInt, JObject, JString, JValue}
import org.json4s.jackson.JsonMethods.{compact, parse, render}

import org.apache.spark.sql.catalyst.expressions.UnsafeRow
import org.apache.spark.sql.execution.streaming.state.{KeyStateEncoderSpec, NoPrefixKeyStateEncoderSpec, RocksDBKeyStateEncoder, UnsafeRowDataEncoder}
import org.apache.spark.sql.types.StructType

/**
 * A column family as its operator describes it. The key schema is the encoder spec's: a join hands over another one beside it.
 *
 * @param multipleValues whether a key has a list of values
 * @param internal       Spark's own bookkeeping, such as timers: not counted as rows
 */
final case class ColumnFamily(name: String, spec: KeyStateEncoderSpec, valueSchema: StructType, multipleValues: Boolean, internal: Boolean) {
  def keySchema: StructType = spec.keySchema

  private[spark] def toJson(id: Int): JObject = JObject(
    "id" -> JInt(id),
    "internal" -> JBool(internal),
    "key" -> parse(keySchema.json),
    "key_encoder" -> parse(spec.json),
    "multiple" -> JBool(multipleValues),
    "name" -> JString(name),
    "value" -> parse(valueSchema.json))
}

/**
 * The column families of one version, as its schema item holds them (docs/storage-format.md, "schema"). Ids are given out in
 * ascending order and never to another name: a dropped family keeps its id, and gets it back if it is made again.
 */
final class StateSchema private (private val families: Vector[JObject]) {
  import StateSchema._

  /** JSON without blanks, families by id. */
  lazy val text: String = compact(render(JObject("families" -> JArray(families.toList))))

  /** Ids by name, of families that are there. */
  lazy val ids: Map[String, Int] = families.collect { case family if !isDropped(family) => nameOf(family) -> idOf(family) }.toMap

  lazy val internalIds: Set[Int] = families.collect { case family if flag(family, "internal") => idOf(family) }.toSet

  /** The schema with a family added, or described anew, or taken up again. */
  def add(family: ColumnFamily): StateSchema = families.find(nameOf(_) == family.name) match {
    case Some(known) =>
      val described = family.toJson(idOf(known))
      if (described == known) this else new StateSchema(families.updated(idOf(known), described))
    case None if families.size <= IdMax => new StateSchema(families :+ family.toJson(families.size))
    case None => throw new DynastateException(ErrorKind.Configuration, s"a store may have at most ${IdMax + 1} column families")
  }

  def drop(name: String): StateSchema = families.find(nameOf(_) == name) match {
    case Some(known) => new StateSchema(families.updated(idOf(known), JObject(known.obj.filterNot(_._1 == "dropped") :+ (JField("dropped", JBool(true))))))
    case None => this
  }
}

object StateSchema {
  private val IdMax = 0xFFF
  val Empty = new StateSchema(Vector.empty)

  def parse(text: String): StateSchema = org.json4s.jackson.JsonMethods.parse(text) \ "families" match {
    case JArray(families) =>
      val parsed = families.collect { case family: JObject => family }.toVector
      if (parsed.zipWithIndex.exists { case (family, at) => idOf(family) != at }) broken(text)
      new StateSchema(parsed)
    case _ => broken(text)
  }

  private def broken(text: String): Nothing = throw new DynastateException(ErrorKind.Corrupt, s"a schema item is no list of column families by id: $text")

  private def nameOf(family: JObject): String = field(family, "name") match {
    case JString(name) => name
    case _ => broken(compact(render(family)))
  }

  private def idOf(family: JObject): Int = field(family, "id") match {
    case JInt(id) => id.toInt
    case _ => broken(compact(render(family)))
  }

  private def isDropped(family: JObject): Boolean = flag(family, "dropped")

  private def flag(family: JObject, name: String): Boolean = field(family, name) == JBool(true)

  private def field(family: JObject, name: String): JValue = family \ name
}

/**
 * A column family of one open store. Keys without prefix or range scans are the raw row; others are what Spark's own encoder
 * gives, which has state, so that every store has one of its own.
 */
final class OpenFamily(val id: Int, val family: ColumnFamily, useColumnFamilies: Boolean) {
  val encoder: RocksDBKeyStateEncoder = family.spec match {
    case _: NoPrefixKeyStateEncoderSpec => null
    case spec => spec.toEncoder(new UnsafeRowDataEncoder(spec, family.valueSchema), useColumnFamilies)
  }
  val keyColumns: Int = family.keySchema.length
  val valueColumns: Int = family.valueSchema.length

  def scansInOrder: Boolean = encoder != null && Spark42.supportsRangeScan(family.spec, encoder)

  def supportsDeleteRange: Boolean = encoder != null && Spark42.supportsDeleteRange(family.spec, encoder)

  /** The key of an entry; `row` is used where no decoding is needed. */
  def keyOf(entry: Array[Byte], row: UnsafeRow): UnsafeRow =
    if (encoder == null) {
      row.pointTo(entry, Entry.KeyOffset, Entry.keyLength(entry))
      row
    } else encoder.decodeKey(java.util.Arrays.copyOfRange(entry, Entry.HeaderBytes, Entry.HeaderBytes + Entry.keyLength(entry)))
}
