package io.dynastate.spark

import io.dynastate.{DynastateException, ErrorKind}
import io.dynastate.memory.{ChangeSink, Version, VersionOverlay}

import org.apache.spark.sql.execution.streaming.state.KeyStateEncoderSpec
import org.apache.spark.sql.types.StructType

/** Refuses changes: a read store has no attempt. */
private[spark] object NoChanges extends ChangeSink {
  override def append(records: Int, hashMin: Int, hashMax: Int, chunk: Array[Byte], length: Int): Unit =
    throw new DynastateException(ErrorKind.Internal, "a read store was written to")
}

/** One version, to read. It holds no resource but memory: `release` and `abort` have nothing to free. */
final class DynamoDBReadStateStore private[spark] (protected val provider: DynamoDBStateStoreProvider,
    private[spark] val base: Version, private[spark] val load: Option[Load])
  extends VersionReads {
  protected val overlay = new VersionOverlay(base, NoChanges)
  override protected def isWriter: Boolean = false
  schema = provider.families.schemaOf(base)

  override def version: Long = base.number

  /** The state reader registers a family on one store and reads from the next, so the provider keeps it. */
  override def registerColFamily(colFamilyName: String, keySchema: StructType, valueSchema: StructType,
      keyStateEncoderSpec: KeyStateEncoderSpec, useMultipleValuesPerKey: Boolean, isInternal: Boolean): Unit =
    provider.families.register(colFamilyName, keyStateEncoderSpec, valueSchema, useMultipleValuesPerKey, isInternal)

  override def abort(): Unit = ()

  override def release(): Unit = ()

  override def toString: String = s"DynamoDBReadStateStore[store=${provider.client.store}, version=$version]"
}
