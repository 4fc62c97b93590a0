package org.apache.spark.sql.dynastate.upstream

import io.dynastate.spark.DynamoDBStateStoreProvider
import org.scalatest.PrivateMethodTester

import org.apache.spark.sql.catalyst.expressions.UnsafeRow
import org.apache.spark.sql.execution.streaming.state._
import org.apache.spark.unsafe.Platform

/** Spark's contract of checksums of rows. There is no file to corrupt: what is in the tables has checksums of its own.
 */
class RowChecksumSuite extends StateStoreRowChecksumSuite with PrivateMethodTester {
  override protected def createProvider: StateStoreProvider = new DynamoDBStateStoreProvider

  /** The rows that `get` returns point to the provider's own memory. */
  override protected def corruptRow(provider: StateStoreProvider, store: StateStore, key: UnsafeRow): Unit = {
    val row = store.get(key, StateStore.DEFAULT_COL_FAMILY_NAME)
    Platform.putInt(row.getBaseObject, row.getBaseOffset + 8, row.getInt(0) ^ 1)
  }

  override protected def corruptRowInFileTestMode: Seq[Boolean] = Nil

  override protected def corruptRowInFile(provider: StateStoreProvider, version: Long, isSnapshot: Boolean): Unit =
    throw new UnsupportedOperationException

  override protected def getReadVerifier(
      provider: StateStoreProvider, store: StateStore): Option[KeyValueIntegrityVerifier] =
    Option(store invokePrivate PrivateMethod[AnyRef](Symbol("rowVerifier"))()).map(
      _ invokePrivate PrivateMethod[KeyValueIntegrityVerifier](Symbol("verifier"))())
}
