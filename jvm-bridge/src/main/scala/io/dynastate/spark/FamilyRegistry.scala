package io.dynastate.spark

import java.util.concurrent.ConcurrentHashMap

import io.dynastate.memory.Version

import org.apache.spark.sql.catalyst.expressions.UnsafeRow
import org.apache.spark.sql.execution.streaming.state._
import org.apache.spark.sql.types.StructType

/** The column families of one store, as operators described them. Safe for threads. */
private[spark] final class FamilyRegistry(default: ColumnFamily, useColumnFamilies: Boolean, id: StateStoreId,
    conf: StateStoreConf, schemas: Option[StateSchemaProvider]) {
  private[this] val byName = new ConcurrentHashMap[String, ColumnFamily]
  /** The parsed schema of the newest version: nearly every version has the same. */
  @volatile private[this] var lastSchema: StateSchema = StateSchema.Empty
  @volatile private[this] var formatIsValidated = false
  private[this] val avroSchemas = if (Spark40.usesAvro(conf)) schemas else None
  register(default)

  private def register(family: ColumnFamily): Unit = byName.put(family.name, family)

  /** Register a family, with the earlier schemas of its values where the encoding of state is Avro. */
  def register(name: String, spec: KeyStateEncoderSpec, valueSchema: StructType, multipleValues: Boolean,
      internal: Boolean): ColumnFamily = {
    val oldSchemas = avroSchemas.toSeq.flatMap { schemas =>
      (0 until schemas.getCurrentStateSchemaId(name, isKey = false))
        .map(id => schemas.getSchemaMetadataValue(StateSchemaMetadataKey(name, id.toShort, isKey = false)).sqlSchema)
    }
    val family = ColumnFamily(name, spec, valueSchema, multipleValues, internal, oldSchemas)
    register(family)
    family
  }

  /** The column families of a version, the default one as this query describes it. */
  def schemaOf(version: Version): StateSchema = {
    val last = lastSchema
    if (last.text == version.schema) last
    else {
      val next = (if (version.schema.isEmpty) StateSchema.Empty else StateSchema.parse(version.schema)).add(default)
      lastSchema = next
      next
    }
  }

  /** Open a family for a store. A writer must have made it, or its version must have it: the registry also has families
   * of aborted attempts and of later versions. For a reader, a family that its version does not have is empty, with the
   * id that it would get.
   */
  def open(operation: String, name: String, schema: StateSchema, isForWriter: Boolean): OpenFamily = {
    val family = byName.get(name)
    if (family == null || (isForWriter && !schema.ids.contains(name)))
      throw StateStoreErrors.unsupportedOperationOnMissingColumnFamily(operation, name)
    new OpenFamily(schema.ids.getOrElse(name, schema.add(family).ids(name)), family, useColumnFamilies, avroSchemas)
  }

  /** Refuse names that Spark refuses, and all if column families are off. */
  def validateName(provider: String, operation: String, name: String, isInternal: Boolean): Unit = {
    if (!useColumnFamilies) throw StateStoreErrors.unsupportedOperationException(operation, provider)
    if (name.isEmpty || name.trim != name || (name == ColumnFamily.Default && !isInternal))
      throw StateStoreErrors.cannotUseColumnFamilyWithInvalidName(operation, name)
    if (!isInternal && name.charAt(0) == '$') throw StateStoreErrors.cannotCreateColumnFamilyWithReservedChars(name)
  }

  /** Spark's cheap check for wrong schemas, on the first row read; as in RocksDB's, not with column families. */
  def validateFormat(key: UnsafeRow, value: UnsafeRow): Unit = if (!formatIsValidated) {
    if (!useColumnFamilies) Spark41.validateStateRowFormat(key, default.keySchema, value, default.valueSchema, id, conf)
    formatIsValidated = true
  }
}
