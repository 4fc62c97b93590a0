package io.dynastate.spark

import io.dynastate.{DynastateException, ErrorKind}
import org.json4s.JsonAST.{JArray, JBool, JField, JInt, JObject, JString, JValue}
import org.json4s.jackson.JsonMethods.{compact, render}

/** The column families of one version, as its schema item holds them (docs/storage-format.md, "schema"). Ids ascend,
 * and an id is never reused for another name: a dropped family keeps its id, and gets it back if it is made again.
 */
final class StateSchema private (private val families: Vector[JObject]) {
  import StateSchema._

  /** Families that were added and changed nothing: every task adds its store's again, and JSON takes milliseconds. */
  @volatile private[this] var unchanged = Map.empty[String, ColumnFamily]

  /** JSON without blanks, families by id. */
  lazy val text: String = compact(render(JObject("families" -> JArray(families.toList))))

  /** Ids by name, without dropped families. */
  lazy val ids: Map[String, Int] =
    families.collect { case family if !flag(family, "dropped") => nameOf(family) -> idOf(family) }.toMap

  lazy val internalIds: Set[Int] = families.collect { case family if flag(family, "internal") => idOf(family) }.toSet

  /** The schema with a family added, its description replaced, or undropped. */
  def add(family: ColumnFamily): StateSchema = if (unchanged.get(family.name).contains(family)) this else added(family)

  private def added(family: ColumnFamily): StateSchema = families.find(nameOf(_) == family.name) match {
    case Some(known) =>
      val json = family.toJson(idOf(known))
      if (json == known) {
        unchanged += family.name -> family
        this
      } else new StateSchema(families.updated(idOf(known), json))
    case None if families.size <= IdMax => new StateSchema(families :+ family.toJson(families.size))
    case None =>
      throw new DynastateException(ErrorKind.Configuration, s"a store may have at most ${IdMax + 1} column families")
  }

  def drop(name: String): StateSchema = families.find(nameOf(_) == name) match {
    case Some(known) => new StateSchema(families.updated(idOf(known),
          JObject(known.obj.filterNot(_._1 == "dropped") :+ (JField("dropped", JBool(true))))))
    case None => this
  }
}

object StateSchema {
  private val IdMax = 0xfff
  val Empty = new StateSchema(Vector.empty)

  def parse(text: String): StateSchema = org.json4s.jackson.JsonMethods.parse(text) \ "families" match {
    case JArray(families) =>
      val objects = families.collect { case family: JObject => family }.toVector
      if (objects.zipWithIndex.exists { case (family, at) => idOf(family) != at }) corrupt(text)
      new StateSchema(objects)
    case _ => corrupt(text)
  }

  private def corrupt(text: String): Nothing =
    throw new DynastateException(ErrorKind.Corrupt, s"a schema item is not a list of column families by id: $text")

  private def nameOf(family: JObject): String = family \ "name" match {
    case JString(name) => name
    case _ => corrupt(compact(render(family)))
  }

  private def idOf(family: JObject): Int = family \ "id" match {
    case JInt(id) => id.toInt
    case _ => corrupt(compact(render(family)))
  }

  private def flag(family: JObject, name: String): Boolean = (family \ name) == JBool(true)
}
