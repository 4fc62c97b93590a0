package io.dynastate.checkpoint

import io.dynastate.{DynastateException, ErrorKind}
import io.dynastate.spark.ProviderSettings
import org.apache.hadoop.fs.Path

/** A file or folder of a checkpoint in DynamoDB.
 *
 * @param checkpoint `NAMESPACE/NAME`
 * @param file       its path in the checkpoint; empty: the checkpoint's folder
 */
private[checkpoint] final case class CheckpointPath(checkpoint: String, file: String) {
  /** Whether it may be the folder of a partition of a stateful operator. */
  def isOfPartition: Boolean = file.matches("state/[0-9]+/[0-9]+")

  /** Whether it may be the folder of a stateful operator. */
  def isOfOperator: Boolean = file.matches("state/[0-9]+")

  /** Whether it is a file with rows of another provider's state: dynastate has descriptions only. */
  def isOfOtherState: Boolean = file.matches("state/[0-9]+/[0-9]+/(?!(.*/)?_).*")
}

private[checkpoint] object CheckpointPath {
  private val Name = "[A-Za-z0-9._-]{1,128}"
  private val Uri = s"($Name)/($Name)(?:/(.*))?".r

  /** All parts are in the path: Hadoop has one file system for namespaces that differ in case only. */
  def of(path: Path): CheckpointPath = Option(path.toUri.getAuthority).map(_ + path.toUri.getPath) match {
    case Some(Uri(namespace, name, file)) => CheckpointPath(s"$namespace/$name", Option(file).getOrElse(""))
    case _ => throw new DynastateException(ErrorKind.Configuration,
        "a checkpoint in DynamoDB is named dynastate://NAMESPACE/NAME, both of 1 to 128 characters of A-Z a-z 0-9 . " +
          s"_ - path=$path")
  }

  /** Whether a path is of a checkpoint in DynamoDB. */
  def isOne(path: Path): Boolean = path.toUri.getScheme == ProviderSettings.CheckpointScheme
}
