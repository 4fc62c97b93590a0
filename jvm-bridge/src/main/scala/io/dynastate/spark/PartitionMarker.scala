package io.dynastate.spark

import java.io.FileNotFoundException
import java.nio.charset.StandardCharsets.UTF_8
import java.util.concurrent.{CompletableFuture, Executors}

import scala.util.control.NonFatal

import io.dynastate.DaemonThreads
import org.apache.hadoop.conf.Configuration
import org.apache.hadoop.fs.Path

import org.apache.spark.sql.execution.streaming.state.StateStoreId

/** A file in the partition's folder that names its store. Spark's state reader lists folders to find partitions, and
 * would otherwise silently read partition 0 only. In a copied checkpoint the file names the store of the query that it
 * was copied from, until the first commit. To look for it takes several requests on an object store, so that is done
 * while the first task works. A checkpoint in DynamoDB needs no file: the list of stores has its partitions. Safe for
 * threads.
 */
private[spark] final class PartitionMarker(id: StateStoreId, hadoopConf: Configuration, store: String) {
  import PartitionMarker._

  private[this] val file = new Path(
    new Path(new Path(id.checkpointRootLocation, id.operatorId.toString), id.partitionId.toString), "dynastate")
  private[this] val text = s"state of this partition is in DynamoDB store=$store\n"
  /** What the file begins with. Stores of a join share the file: any of them may be named. */
  private[this] val beginning = text.substring(0, text.lastIndexOf('/') + 1).getBytes(UTF_8)
  /** Whether it is there. Null before the first look. */
  private[this] var found: CompletableFuture[Boolean] = _
  @volatile private[this] var isWritten = file.toUri.getScheme == ProviderSettings.CheckpointScheme

  /** Look for it in the background, once. */
  def find(): Unit =
    if (!isWritten) synchronized(if (found == null) found = CompletableFuture.supplyAsync(() => isFound, finders))

  /** Write it, unless it was found or written. */
  def write(): Unit = if (!isWritten) {
    find()
    if (!found.get() && !isThere) {
      val out = file.getFileSystem(hadoopConf).create(file, true)
      try out.write(text.getBytes(UTF_8))
      finally out.close()
    }
    isWritten = true
  }

  /** Whether it is there. After a failure `write` looks again, and reports it. */
  private def isFound: Boolean =
    try isThere
    catch { case NonFatal(_) => false }

  private def isThere: Boolean =
    try {
      val in = file.getFileSystem(hadoopConf).open(file)
      try in.readNBytes(beginning.length).sameElements(beginning)
      finally in.close()
    } catch { case _: FileNotFoundException => false }
}

private object PartitionMarker {
  /** A thread for each look under way. */
  private val finders = Executors.newCachedThreadPool(new DaemonThreads("dynastate-marker"))
}
