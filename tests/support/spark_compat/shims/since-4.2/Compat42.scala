package io.dynastate.compat

import org.apache.spark.sql.catalyst.expressions.UnsafeRow
import org.apache.spark.sql.execution.streaming.state._
import org.apache.spark.sql.types.StructType

trait Compat42 {
  val hasTimes = true

  def timeFirst(key: StructType): KeyStateEncoderSpec = TimestampAsPrefixKeyStateEncoderSpec(key)

  def timeLast(key: StructType): KeyStateEncoderSpec = TimestampAsPostfixKeyStateEncoderSpec(key)

  def isTimeLast(spec: KeyStateEncoderSpec): Boolean = spec.isInstanceOf[TimestampAsPostfixKeyStateEncoderSpec]

  def namesOfFamilies(store: ReadStateStore): Option[Set[String]] = Some(store.allColumnFamilyNames)

  def openForSnapshot(provider: StateStoreProvider, version: Long): StateStore =
    provider.getStore(version, None, forceSnapshotOnCommit = true)

  def openEmpty(provider: StateStoreProvider, version: Long): StateStore =
    provider.getStore(version, None, loadEmpty = true)

  def rangeScan(store: ReadStateStore, spec: KeyStateEncoderSpec, value: StructType, from: Option[UnsafeRow],
      until: Option[UnsafeRow], family: String): StateStoreIterator[UnsafeRowPair] =
    store.rangeScan(from, until, family)

  def rangeScanWithMultiValues(store: ReadStateStore, spec: KeyStateEncoderSpec, value: StructType,
      from: Option[UnsafeRow], until: Option[UnsafeRow], family: String): StateStoreIterator[UnsafeRowPair] =
    store.rangeScanWithMultiValues(from, until, family)
}
