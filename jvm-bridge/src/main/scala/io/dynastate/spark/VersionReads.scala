package io.dynastate.spark

import scala.collection.mutable

import io.dynastate.memory.{Row, RowIterator, ScanIterator, StoredValue, VersionOverlay}

import org.apache.spark.sql.catalyst.expressions.UnsafeRow
import org.apache.spark.sql.execution.streaming.state._
import org.apache.spark.unsafe.Platform

/** Reads of one open version, for read stores and write stores. Returned rows are views of arrays that never change. */
private[spark] trait VersionReads extends ReadStateStore43 {
  protected def provider: DynamoDBStateStoreProvider

  protected def overlay: VersionOverlay

  /** Whether a family that this version does not have is an error. */
  protected def isWriter: Boolean

  /** The column families as this store sees them. */
  protected var schema: StateSchema = _

  /** Null: what is read is not verified. */
  private[spark] val rowVerifier: RowVerifier = provider.readVerifier()

  private[this] val open = mutable.HashMap.empty[String, OpenFamily]
  /** Nearly every call is for the same family as the one before. */
  private[this] var lastName: String = _
  private[this] var last: OpenFamily = _

  override def id: StateStoreId = provider.stateStoreId

  /** The first value, where there are several. */
  override def get(key: UnsafeRow, colFamilyName: String): UnsafeRow = {
    val family = familyOf("get", colFamilyName)
    val row = rowOf(family, key)
    if (row == null) null
    else {
      val value = valueOf(row, family, new UnsafeRow(family.valueColumns))
      provider.families.validateFormat(key, value)
      value
    }
  }

  override def keyExists(key: UnsafeRow, colFamilyName: String): Boolean =
    rowOf(familyOf("keyExists", colFamilyName), key) != null

  override def multiGet(keys: Array[UnsafeRow], colFamilyName: String): Iterator[UnsafeRow] =
    keys.iterator.map(get(_, colFamilyName))

  override def valuesIterator(key: UnsafeRow, colFamilyName: String): Iterator[UnsafeRow] = {
    val family = multipleFamilyOf("valuesIterator", colFamilyName)
    valuesOf(rowOf(family, key), family)
  }

  /** All pairs as of now; in the order of their bytes if keys can be scanned by range. Pair and rows are reused. */
  override def iterator(colFamilyName: String): StateStoreIterator[UnsafeRowPair] = {
    val family = familyOf("iterator", colFamilyName)
    pairs(all(family), family)
  }

  override def iteratorWithMultiValues(colFamilyName: String): StateStoreIterator[UnsafeRowPair] = {
    val family = multipleFamilyOf("iteratorWithMultiValues", colFamilyName)
    valuePairs(all(family), family)
  }

  override def prefixScan(prefixKey: UnsafeRow, colFamilyName: String): StateStoreIterator[UnsafeRowPair] = {
    val family = familyOf("prefixScan", colFamilyName)
    pairs(prefixed(family, prefixKey), family)
  }

  override def prefixScanWithMultiValues(
      prefixKey: UnsafeRow, colFamilyName: String): StateStoreIterator[UnsafeRowPair] = {
    val family = multipleFamilyOf("prefixScanWithMultiValues", colFamilyName)
    valuePairs(prefixed(family, prefixKey), family)
  }

  override def rangeScan(startKey: Option[UnsafeRow], endKey: Option[UnsafeRow],
      colFamilyName: String): StateStoreIterator[UnsafeRowPair] = {
    val family = familyOf("rangeScan", colFamilyName)
    pairs(range(family, startKey, endKey), family)
  }

  override def rangeScanWithMultiValues(startKey: Option[UnsafeRow], endKey: Option[UnsafeRow],
      colFamilyName: String): StateStoreIterator[UnsafeRowPair] = {
    val family = multipleFamilyOf("rangeScanWithMultiValues", colFamilyName)
    valuePairs(range(family, startKey, endKey), family)
  }

  /** One iterator over a family, to be moved: each call gives all pairs as of then, and ends those of the call before.
   * They are from the first key that has a prefix or is after it; null: from the first.
   */
  def movedPairs(colFamilyName: String): UnsafeRow => StateStoreIterator[UnsafeRowPair] = {
    var rows: ScanIterator = null
    prefixKey => {
      val family = familyOf("reusableIterator", colFamilyName)
      require(family.scansInOrder && !family.family.multipleValues,
        "A reusable iterator requires an encoder that supports range scans, and single values!")
      val from = if (prefixKey == null) null else family.encoder.encodePrefixKey(prefixKey).clone()
      rows = overlay.scanFrom(family.id, from, rows)
      pairs(rows, family)
    }
  }

  override def allColumnFamilyNames: Set[String] = schema.ids.keySet + ColumnFamily.Default

  protected def forgetFamily(name: String): Unit = {
    open.remove(name)
    lastName = null
  }

  protected def familyOf(operation: String, name: String): OpenFamily =
    if (name == lastName) last
    else {
      val family = open.getOrElseUpdate(name, opened(operation, name))
      lastName = name
      last = family
      family
    }

  private def opened(operation: String, name: String): OpenFamily = {
    val family = provider.families.open(operation, name, schema, isWriter)
    if (family.family.multipleValues) overlay.keepEveryWrite(family.id)
    if (family.isScanned) overlay.keepInOrder(family.id)
    family
  }

  protected def multipleFamilyOf(operation: String, name: String): OpenFamily = {
    val family = familyOf(operation, name)
    if (!family.family.multipleValues) throw new IllegalStateException(
      s"$operation requires an encoder that supports multiple values for a single key, column family $name has none")
    family
  }

  protected def rowOf(family: OpenFamily, key: UnsafeRow): Row = {
    requireKey(key)
    if (family.encoder == null) overlay.get(family.id, key.getBaseObject, key.getBaseOffset, key.getSizeInBytes)
    else {
      val bytes = family.encoder.encodeKey(key)
      overlay.get(family.id, bytes, Platform.BYTE_ARRAY_OFFSET, bytes.length)
    }
  }

  protected def requireKey(key: UnsafeRow): Unit =
    if (key == null) throw new IllegalStateException("Key cannot be null")

  protected def range(family: OpenFamily, startKey: Option[UnsafeRow], endKey: Option[UnsafeRow]): RowIterator = {
    require(family.scansInOrder, "Range scan requires an encoder that supports range scans!")
    // Copied, because the encoder may return the same array twice.
    val from = startKey.map(family.encoder.encodeKey(_).clone())
    overlay.scan(family.id, from.orNull, endKey.map(family.encoder.encodeKey).orNull)
  }

  private def all(family: OpenFamily): RowIterator =
    if (family.scansInOrder) overlay.scan(family.id, null, null) else overlay.rows(family.id)

  private def prefixed(family: OpenFamily, prefixKey: UnsafeRow): RowIterator = {
    require(family.encoder != null && family.encoder.supportPrefixKeyScan, "Prefix scan requires setting prefix key!")
    val prefix = family.encoder.encodePrefixKey(prefixKey)
    overlay.scan(family.id, prefix.clone(), VersionReads.after(prefix))
  }

  private def pairs(rows: RowIterator, family: OpenFamily): StateStoreIterator[UnsafeRowPair] = {
    val key = new UnsafeRow(family.keyColumns)
    val value = new UnsafeRow(family.valueColumns)
    val pair = new UnsafeRowPair()
    val pairs = iteratorOf(rows).map { row =>
      pair.withRows(family.keyOf(row, key), valueOf(row, family, value))
      provider.families.validateFormat(pair.key, pair.value)
      pair
    }
    new StateStoreIterator(pairs, () => rows.close())
  }

  private def valuePairs(rows: RowIterator, family: OpenFamily): StateStoreIterator[UnsafeRowPair] = {
    val key = new UnsafeRow(family.keyColumns)
    val pair = new UnsafeRowPair()
    val values = iteratorOf(rows).flatMap { row =>
      // Another iterator may decode a key before the last value is read, and an encoder decodes into one row.
      val rowKey = if (family.encoder == null) family.keyOf(row, key) else family.keyOf(row, key).copy()
      valuesOf(row, family).map(pair.withRows(rowKey, _))
    }
    new StateStoreIterator(values, () => rows.close())
  }

  private def iteratorOf(rows: RowIterator): Iterator[Row] =
    Iterator.continually(rows).takeWhile(_.advance()).map(_.row)

  /** The values of a row, in the order in which they were appended; of null, none. */
  private def valuesOf(row: Row, family: OpenFamily): Iterator[UnsafeRow] =
    if (row == null) Iterator.empty
    else {
      val value = new UnsafeRow(family.valueColumns)
      val values = row.values
      Iterator.continually(values).takeWhile(_.advance()).map(each => verified(row, family, each.value, value))
    }

  /** The first value of a row. */
  private def valueOf(row: Row, family: OpenFamily, into: UnsafeRow): UnsafeRow =
    if (row.isList) {
      val values = row.values
      values.advance()
      verified(row, family, values.value, into)
    } else verified(row, family, row.value, into)

  private def verified(row: Row, family: OpenFamily, value: StoredValue, into: UnsafeRow): UnsafeRow = {
    if (rowVerifier != null) rowVerifier.verify(row, value)
    family.valueOf(value, into)
  }
}

private[spark] object VersionReads {
  /** The smallest key that is larger than every key with this prefix, or null. */
  def after(prefix: Array[Byte]): Array[Byte] = {
    var last = prefix.length - 1
    while (last >= 0 && prefix(last) == -1) last -= 1
    if (last < 0) null
    else {
      val next = java.util.Arrays.copyOf(prefix, last + 1)
      next(last) = (next(last) + 1).toByte
      next
    }
  }
}
