package io.dynastate.spark

import java.nio.{ByteBuffer, ByteOrder}

import io.dynastate.memory.{ChangeRecords, EncodedRow, Row, StoredValue}

import org.apache.spark.sql.execution.streaming.state._

/** Verifies the checksums of rows, if they have one, by Spark's own verifier: its count, its log line, its error. */
private[spark] final class RowVerifier private (private[spark] val verifier: KeyValueIntegrityVerifier) {
  /** Verify a value of a row. */
  def verify(row: Row, value: StoredValue): Unit = if (value.hasChecksum) {
    val key =
      ArrayIndexRange(row.bytes, row.at + EncodedRow.HeaderBytes, row.at + EncodedRow.HeaderBytes + row.keyLength)
    verifier.verify(key, Some(ArrayIndexRange(value.bytes, value.at, value.checksumAt)), value.checksum)
  }

  /** Verify all encoded changes that remain in a buffer, which stays as it is. */
  def verifyAll(changes: ByteBuffer): Unit = {
    val records = new ChangeRecords(changes.duplicate().order(ByteOrder.LITTLE_ENDIAN))
    while (records.advance()) {
      val row = records.row
      if (!row.isDelete) verify(row, row.value)
    }
  }
}

private[spark] object RowVerifier {
  def isEnabled(conf: StateStoreConf): Boolean = conf.rowChecksumEnabled

  /** For loads and what snapshots write: every row. Safe for threads, since it need not count. Null: not enabled. */
  def ofAll(id: StateStoreId, conf: StateStoreConf): RowVerifier = of(id, conf, 1)

  /** For what one store reads: as often as `rowChecksum.readVerificationRatio` says. Null: never. */
  def ofReads(id: StateStoreId, conf: StateStoreConf): RowVerifier = of(id, conf, conf.rowChecksumReadVerificationRatio)

  private def of(id: StateStoreId, conf: StateStoreConf, ratio: Long): RowVerifier =
    if (!isEnabled(conf)) null
    else {
      // As RocksDB's provider names itself in the error.
      val name = s"StateStoreId(opId=${id.operatorId},partId=${id.partitionId},name=${id.storeName})"
      KeyValueIntegrityVerifier.create(name, rowChecksumEnabled = true, ratio).map(new RowVerifier(_)).orNull
    }
}
