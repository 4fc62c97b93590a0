package org.apache.spark.sql.dynastate

import java.io.FileNotFoundException
import java.nio.charset.StandardCharsets.UTF_8

import scala.io.Source
import scala.util.Try

import io.dynastate.{DynastateException, ErrorKind}
import io.dynastate.spark.ProviderSettings.CheckpointScheme
import org.apache.hadoop.conf.Configuration
import org.apache.hadoop.fs.{FileSystem, Path}
import org.json4s.JsonAST.JString
import org.json4s.jackson.JsonMethods.parseOpt

import org.apache.spark.QueryContext
import org.apache.spark.sql.{AnalysisException, SparkSessionExtensions}
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan
import org.apache.spark.sql.catalyst.streaming.WriteToStream
import org.apache.spark.sql.internal.SQLConf

/** Refuses the start of a stateful query whose checkpoint was begun on another provider, in a session whose provider is
 * dynastate's. Spark would continue on the provider that the offset log names, and write nothing to DynamoDB. In every
 * session, refuses the start of a stateful query on another provider whose checkpoint is in DynamoDB: the files of its
 * state would be refused, one task after the other.
 */
private[dynastate] object RefusePinnedProvider {
  val Provider = "io.dynastate.spark.DynamoDBStateStoreProvider"
  val Setting = SQLConf.STATE_STORE_PROVIDER_CLASS.key
  private val StatefulNodes = Set("Aggregate", "Distinct", "Deduplicate", "DeduplicateWithinWatermark", "GlobalLimit",
    "FlatMapGroupsWithState", "FlatMapGroupsInPandasWithState", "TransformWithState", "TransformWithStateInPandas",
    "TransformWithStateInPySpark")

  /** Spark analyses the plan of a query in the session that starts it, whose conf is the user's; the query's own has
   * the pinned class.
   */
  def inject(extensions: SparkSessionExtensions): Unit = extensions.injectCheckRule { session =>
    {
      case write: WriteToStream if isChosen || isInDynamoDB(write) =>
        check(write, session.sessionState.newHadoopConf())
      case _: LogicalPlan =>
    }
  }

  /** PySpark shows this class by its message alone. */
  private final class QueryRefused(refused: DynastateException)
    extends AnalysisException(refused.getMessage, None, None, Some(refused), None, Map.empty, Array.empty[QueryContext])

  /** Whether dynastate is the provider of the session, or of the queries that it starts. */
  def isChosen: Boolean = chosen == Provider

  /** Whether a query that starts has state on dynastate. */
  def isStatefulOnDynastate(write: WriteToStream): Boolean = isChosen && isStateful(write.inputQuery)

  private def chosen: String =
    if (RealTimeMode.isEnabled && !SQLConf.get.contains(Setting)) Provider
    else SQLConf.get.getConf(SQLConf.STATE_STORE_PROVIDER_CLASS)

  /** Refuse a query whose own session was to have dynastate's provider, and has another, or none: then Spark takes its
   * default one.
   */
  def checkOwn(query: LogicalPlan): Unit = {
    val own = SQLConf.get.getConf(SQLConf.STATE_STORE_PROVIDER_CLASS)
    if (own != Provider && isStateful(query)) throw refused(
      "spark.dynastate.realTimeMode.enabled is set, and yet the query's own session has another state store: a " +
        "listener of the session has set it, or removed dynastate's listener; remove that one, and start the query " +
        s"again providerClass=$own")
  }

  private def isInDynamoDB(write: WriteToStream): Boolean =
    new Path(write.resolvedCheckpointLocation).toUri.getScheme == CheckpointScheme

  private def check(write: WriteToStream, hadoopConf: Configuration): Unit = {
    val folder = new Path(write.resolvedCheckpointLocation)
    val files = folder.getFileSystem(hadoopConf)
    // Stateless queries pin a provider, too.
    def hasState: Boolean = files.exists(new Path(folder, "state"))
    val other = pinned(folder, files)
    if (isChosen && other.exists(_ != Provider) && hasState) {
      throw refused(
        "this checkpoint was begun on another state store, and Spark continues it there, whatever the session " +
          "says; move its state with 'dynastate import', or give the query a new checkpoint; to continue on the " +
          s"other store, set $Setting to it in the session before this query starts",
        folder,
        other.get)
    }
    val provider = other.getOrElse(chosen)
    if (provider != Provider && isInDynamoDB(write) && isStateful(write.inputQuery)) {
      // Whatever the session says, Spark takes the provider that the checkpoint names.
      val message =
        if (other.isDefined) "only a query whose state is in dynastate can have its checkpoint in DynamoDB; this one " +
          "was begun on another state store, so use another checkpointLocation"
        else "only a query whose state is in dynastate can have its checkpoint in DynamoDB; set " +
          s"$Setting=$Provider before it starts, or use another checkpointLocation"
      throw refused(message, folder, provider)
    }
  }

  private def refused(message: String, checkpoint: Path, provider: String): AnalysisException =
    refused(message + s" checkpoint=$checkpoint providerClass=$provider")

  def refused(message: String): AnalysisException =
    new QueryRefused(new DynastateException(ErrorKind.Configuration, message))

  /** Whether a query has state, by the names that Spark has for such operators: not each version has all classes. */
  private def isStateful(query: LogicalPlan): Boolean = query.exists { node =>
    def isJoin = node.nodeName == "Join" && node.children.forall(_.isStreaming)
    node.isStreaming && (StatefulNodes(node.nodeName) || isJoin)
  }

  /** The provider that the newest offset names. */
  private def pinned(checkpoint: Path, files: FileSystem): Option[String] = {
    val offsets =
      try files.listStatus(new Path(checkpoint, "offsets")).map(_.getPath)
      catch { case _: FileNotFoundException => Array.empty[Path] }
    val batches = offsets.flatMap(path => Try(path.getName.toLong).toOption.map(_ -> path))
    batches.sortBy(-_._1).headOption.flatMap { case (_, newest) =>
      // The second line is JSON; what cannot be read Spark reports itself.
      val in = files.open(newest)
      val lines =
        try Source.fromInputStream(in, UTF_8.name).getLines().slice(1, 2).toList
        finally in.close()
      lines.headOption.flatMap(parseOpt(_)).map(_ \ "conf" \ Setting).collect { case JString(name) => name }
    }
  }
}
