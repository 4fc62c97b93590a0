package io.dynastate.conformance

import io.dynastate.compat.hasIds

/** An ability that a provider may lack; it must then refuse at the first use. */
sealed trait Need
object Need {
  case object Families extends Need
  /** Checkpoint ids (checkpoint format v2). */
  case object Ids extends Need
}

/** A provider and its conf. */
final case class Subject(name: String, kind: String, providerClass: String, ids: Boolean, conf: Map[String, String]) {
  override def toString: String = name
}

object Subjects {
  private val Spark = "org.apache.spark.sql.execution.streaming.state"
  private val Conf = "spark.sql.streaming.stateStore"
  private val RocksDB = Map(
    s"$Conf.rocksdb.changelogCheckpointing.enabled" -> "true",
    // How long a second store waits for the first; a minute by default.
    s"$Conf.rocksdb.lockAcquireTimeoutMs" -> "200")
  private val Ours = "io.dynastate.spark.DynamoDBStateStoreProvider"

  /** By kind: one process runs all of a kind. Ours runs every case in each checkpoint format that this Spark has, and
   * with little memory.
   */
  def of(kind: String, conf: Map[String, String]): Seq[Subject] = kind match {
    case "hdfs" => Seq(Subject("hdfs", kind, s"$Spark.HDFSBackedStateStoreProvider", ids = false, conf))
    case "rocksdb" => Seq(Subject("rocksdb", kind, s"$Spark.RocksDBStateStoreProvider", ids = false, conf ++ RocksDB))
    case "dynastate" =>
      val bounded = Subject("dynastate-bounded", kind, Ours, ids = hasIds,
        conf ++ Seq(s"$Conf.dynastate.memoryMb" -> "1", s"$Conf.dynastate.diskMb" -> "0"))
      val second = if (hasIds) Some(Subject("dynastate-v2", kind, Ours, ids = true, conf)) else None
      Seq(Subject("dynastate", kind, Ours, ids = false, conf), bounded) ++ second
    case _ => throw new IllegalArgumentException(s"no provider is called $kind")
  }
}
