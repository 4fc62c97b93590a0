package org.apache.spark.sql.dynastate.upstream

import io.dynastate.spark.DynamoDBStateStoreProvider

import org.apache.spark.sql.QueryTest
import org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider

/** A suite of Spark that asks for RocksDB by name, and gets our provider. */
trait OnDynamoDB extends QueryTest {
  override protected def withSQLConf(pairs: (String, String)*)(body: => Unit): Unit =
    super.withSQLConf(pairs.map { case (name, value) =>
      name -> (if (value == classOf[RocksDBStateStoreProvider].getName) classOf[DynamoDBStateStoreProvider].getName
               else value)
    }: _*)(body)
}
