package org.apache.spark.sql.execution.streaming.state

import java.io.Closeable

import org.json4s.JsonAST.{JInt, JObject, JString}
import org.json4s.jackson.JsonMethods.{compact, render}

import org.apache.spark.sql.catalyst.expressions.UnsafeRow
import org.apache.spark.sql.types.StructType

/** Spark's classes since 4.0 that this Spark does not have, as far as the shared sources name them. Here a description
 * of a key, with the JSON that later Sparks give it.
 */
sealed abstract class KeyStateEncoderSpec(fields: (String, org.json4s.JValue)*) {
  def keySchema: StructType

  def json: String = compact(render(JObject(fields.toList)))

  def toEncoder(values: UnsafeRowDataEncoder, useColumnFamilies: Boolean): RocksDBKeyStateEncoder
}

final case class NoPrefixKeyStateEncoderSpec(keySchema: StructType)
  extends KeyStateEncoderSpec("keyStateEncoderType" -> JString("NoPrefixKeyStateEncoderSpec")) {
  override def toEncoder(values: UnsafeRowDataEncoder, useColumnFamilies: Boolean): RocksDBKeyStateEncoder =
    throw new IllegalStateException("keys without a prefix are not encoded")
}

final case class PrefixKeyScanStateEncoderSpec(keySchema: StructType, numColsPrefixKey: Int)
  extends KeyStateEncoderSpec("keyStateEncoderType" -> JString("PrefixKeyScanStateEncoderSpec"),
    "numColsPrefixKey" -> JInt(numColsPrefixKey)) {
  override def toEncoder(values: UnsafeRowDataEncoder, useColumnFamilies: Boolean): RocksDBKeyStateEncoder =
    new RocksDBKeyStateEncoder(RocksDBStateEncoder.getEncoder(keySchema, values.valueSchema, numColsPrefixKey))
}

/** No operator of this Spark has such keys. */
final case class RangeKeyScanStateEncoderSpec(keySchema: StructType, orderingOrdinals: Seq[Int])
  extends KeyStateEncoderSpec {
  override def toEncoder(values: UnsafeRowDataEncoder, useColumnFamilies: Boolean): RocksDBKeyStateEncoder =
    throw new IllegalStateException("this Spark does not scan ranges of keys")
}

final class UnsafeRowDataEncoder(spec: KeyStateEncoderSpec, val valueSchema: StructType)

/** The part for keys of this Spark's encoder. */
final class RocksDBKeyStateEncoder(encoder: RocksDBStateEncoder) {
  def supportPrefixKeyScan: Boolean = encoder.supportPrefixKeyScan

  def encodeKey(key: UnsafeRow): Array[Byte] = encoder.encodeKey(key)

  def encodePrefixKey(prefix: UnsafeRow): Array[Byte] = encoder.encodePrefixKey(prefix)

  def decodeKey(bytes: Array[Byte]): UnsafeRow = encoder.decodeKey(bytes)
}

class StateStoreIterator[A](pairs: Iterator[A], onClose: () => Unit = () => ()) extends Iterator[A] with Closeable {
  override def hasNext: Boolean = pairs.hasNext

  override def next(): A = pairs.next()

  override def close(): Unit = onClose()
}

final case class StateStoreCheckpointInfo(partitionId: Int, batchVersion: Long, stateStoreCkptId: Option[String],
    baseStateStoreCkptId: Option[String])

final case class StateSchemaMetadataKey(colFamilyName: String, schemaId: Short, isKey: Boolean)

final case class StateSchemaMetadataValue(sqlSchema: StructType)

trait StateSchemaProvider {
  def getSchemaMetadataValue(key: StateSchemaMetadataKey): StateSchemaMetadataValue

  def getCurrentStateSchemaId(colFamilyName: String, isKey: Boolean): Short
}

trait SupportsFineGrainedReplay {
  def replayStateFromSnapshot(snapshotVersion: Long, endVersion: Long): StateStore

  def replayReadStateFromSnapshot(snapshotVersion: Long, endVersion: Long): ReadStateStore
}

object RecordType extends Enumeration {
  val PUT_RECORD, DELETE_RECORD, MERGE_RECORD = Value
}

object StateStoreErrors {
  def stateStoreOperationOutOfOrder(message: String): Throwable =
    new IllegalStateException(s"state store operation out of order: $message")

  def unsupportedOperationException(operation: String, provider: String): Throwable =
    new UnsupportedOperationException(s"$operation is not supported by $provider")

  def unsupportedOperationOnMissingColumnFamily(operation: String, family: String): Throwable =
    new UnsupportedOperationException(s"$operation on column family $family, which does not exist")

  def cannotUseColumnFamilyWithInvalidName(operation: String, family: String): Throwable =
    new UnsupportedOperationException(s"$operation with an invalid name of a column family: $family")

  def cannotCreateColumnFamilyWithReservedChars(family: String): Throwable =
    new UnsupportedOperationException(s"the name of a column family has reserved characters: $family")
}
