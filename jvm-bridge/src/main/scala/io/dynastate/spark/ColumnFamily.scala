package io.dynastate.spark

import org.json4s.JsonAST.{JArray, JBool, JField, JInt, JObject, JString}
import org.json4s.jackson.JsonMethods.parse

import org.apache.spark.sql.execution.streaming.state.KeyStateEncoderSpec
import org.apache.spark.sql.types.StructType

/** A column family as its operator describes it. Its key schema is the encoder spec's: a join passes another one beside
 * it.
 *
 * @param multipleValues whether a key has a list of values
 * @param internal       Spark's own bookkeeping, such as timers: not counted as rows
 * @param earlierSchemas of values that were written before, by the ids that Spark gave them, from 0 on; with Avro
 *                       encoding only
 */
final case class ColumnFamily(name: String, spec: KeyStateEncoderSpec, valueSchema: StructType, multipleValues: Boolean,
    internal: Boolean, earlierSchemas: Seq[StructType] = Nil) {
  def keySchema: StructType = spec.keySchema

  /** The id of the schema of values. */
  def schemaId: Int = earlierSchemas.length

  private[spark] def toJson(id: Int): JObject = {
    val fields = List[JField]("id" -> JInt(id), "internal" -> JBool(internal), "key" -> parse(keySchema.json),
      "key_encoder" -> parse(spec.json), "multiple" -> JBool(multipleValues), "name" -> JString(name),
      "value" -> parse(valueSchema.json))
    val oldSchemas = JArray(earlierSchemas.map(schema => parse(schema.json)).toList)
    JObject(if (earlierSchemas.isEmpty) fields else ("earlier_values" -> oldSchemas) :: fields)
  }
}

object ColumnFamily {
  /** Spark's name of the family of an operator that has only one. */
  val Default = "default"
}
