package io.dynastate.compat

import java.util.Arrays

import org.apache.spark.sql.catalyst.expressions.UnsafeRow
import org.apache.spark.sql.execution.streaming.state._
import org.apache.spark.sql.types.StructType

trait Compat42 {
  val hasTimes = false

  def timeFirst(key: StructType): KeyStateEncoderSpec = throw new Absent("keys that begin with a time")

  def timeLast(key: StructType): KeyStateEncoderSpec = throw new Absent("keys that end with a time")

  def isTimeLast(spec: KeyStateEncoderSpec): Boolean = false

  /** Unknown in this Spark. */
  def namesOfFamilies(store: ReadStateStore): Option[Set[String]] = None

  def openForSnapshot(provider: StateStoreProvider, version: Long): StateStore =
    throw new Absent("forceSnapshotOnCommit")

  def openEmpty(provider: StateStoreProvider, version: Long): StateStore = throw new Absent("loadEmpty")

  implicit final class ReadStateStore42(store: ReadStateStore) {
    def keyExists(key: UnsafeRow, family: String): Boolean = store.get(key, family) != null

    def multiGet(keys: Array[UnsafeRow], family: String): Iterator[UnsafeRow] = keys.iterator.map(store.get(_, family))

    def iteratorWithMultiValues(family: String): StateStoreIterator[UnsafeRowPair] =
      allValues(store.iterator(family), family)

    def prefixScanWithMultiValues(prefix: UnsafeRow, family: String): StateStoreIterator[UnsafeRowPair] =
      allValues(store.prefixScan(prefix, family), family)

    private def allValues(pairs: StateStoreIterator[UnsafeRowPair], family: String): StateStoreIterator[UnsafeRowPair] =
      new StateStoreIterator(pairs.flatMap { pair =>
          val key = pair.key.copy()
          store.valuesIterator(key, family).map(value => new UnsafeRowPair().withRows(key, value))
        }, () => pairs.close())
  }

  implicit final class StateStore42(store: StateStore) {
    def deleteRange(begin: UnsafeRow, end: UnsafeRow, family: String): Unit = throw new Absent("deleteRange")
  }

  /** As in timers and time to live: a family with ordered keys is iterated in order. */
  def rangeScan(store: ReadStateStore, spec: KeyStateEncoderSpec, value: StructType, from: Option[UnsafeRow],
      until: Option[UnsafeRow], family: String): StateStoreIterator[UnsafeRowPair] = {
    if (!spec.isInstanceOf[RangeKeyScanStateEncoderSpec]) throw new Absent("range scans of such keys")
    val encoder = spec.toEncoder(new UnsafeRowDataEncoder(spec, value), true)
    def bytes(key: UnsafeRow): Array[Byte] = encoder.encodeKey(key).clone()
    val (first, end) = (from.map(bytes), until.map(bytes))
    val all = store.iterator(family)
    new StateStoreIterator(
      all.dropWhile(pair => first.exists(Arrays.compareUnsigned(bytes(pair.key), _) < 0))
        .takeWhile(pair => end.forall(Arrays.compareUnsigned(bytes(pair.key), _) < 0)), () => all.close())
  }

  def rangeScanWithMultiValues(store: ReadStateStore, spec: KeyStateEncoderSpec, value: StructType,
      from: Option[UnsafeRow], until: Option[UnsafeRow], family: String): StateStoreIterator[UnsafeRowPair] = {
    val keys = rangeScan(store, spec, value, from, until, family)
    new StateStoreIterator(keys.flatMap { pair =>
        val key = pair.key.copy()
        store.valuesIterator(key, family).map(each => new UnsafeRowPair().withRows(key, each))
      }, () => keys.close())
  }
}
