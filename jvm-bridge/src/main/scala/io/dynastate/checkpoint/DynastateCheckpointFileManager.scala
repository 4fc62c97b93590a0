package io.dynastate.checkpoint

import java.io.ByteArrayOutputStream

import scala.collection.mutable
import scala.util.Try
import scala.util.control.NonFatal

import io.dynastate.{DynastateException, ErrorKind}
import io.dynastate.bridge.FileEntry
import org.apache.hadoop.conf.Configuration
import org.apache.hadoop.fs.{FileStatus, FSDataInputStream, Path, PathFilter}
import org.slf4j.LoggerFactory

import org.apache.spark.SparkEnv

/** The files of one log of a checkpoint in DynamoDB, with as few requests as can be (docs/decisions/0037). Other file
 * systems have Spark's own manager, or the one that was set before.
 *
 * Until the log has put its first file, another run may write: every list is read. From then on the log belongs to this
 * run, since another one is refused by the conditional put: the folder is listed once more, and what this log has
 * written or deleted since is known.
 *
 * Files of batches before its newest one are deleted several at a time. What is left when a run ends, its next one
 * deletes: Spark lists a log before it first purges it. All others are deleted at once. Safe for threads.
 */
final class DynastateCheckpointFileManager(root: Path, hadoopConf: Configuration) extends SparkCheckpoints.Manager {
  import DynastateCheckpointFileManager._

  /** Null: the root is in DynamoDB. */
  private[this] val other = if (CheckpointPath.isOne(root)) null else otherManager(root, hadoopConf)
  private[this] val files = new CheckpointFiles(hadoopConf)
  /** The newest batch of which the log has put a file; -1: none. */
  private[this] var newestBatch = -1L
  /** What is in the folder, by name; null: not known. */
  private[this] var entries: mutable.Map[String, FileEntry] = _
  /** The log has made its folder, in which nothing may be. */
  @volatile private[this] var isMade = false
  /** The contents of the files that were written or read last. */
  private[this] val contents = new java.util.LinkedHashMap[String, Array[Byte]](16, 0.75f, true) {
    override def removeEldestEntry(eldest: java.util.Map.Entry[String, Array[Byte]]): Boolean = size > ContentsMax
  }
  /** Files that are to be deleted. */
  private[this] val garbage = mutable.LinkedHashSet.empty[Path]

  override def createAtomic(path: Path, overwriteIfPossible: Boolean): SparkCheckpoints.Output =
    if (other != null) other.createAtomic(path, overwriteIfPossible)
    else {
      val buffer = new ByteArrayOutputStream
      new SparkCheckpoints.Output(buffer) {
        private[this] var isOver = false

        override def close(): Unit = if (!isOver) {
          isOver = true
          flush()
          put(path, buffer.toByteArray, overwriteIfPossible)
        }

        override def cancel(): Unit = isOver = true
      }
    }

  private def put(path: Path, data: Array[Byte], overwrites: Boolean): Unit = synchronized {
    files.put(path, data, overwrites)
    if (isIn(path)) {
      newestBatch = math.max(newestBatch, batchOf(path))
      if (entries != null)
        entries(path.getName) = FileEntry(path.getName, isFolder = false, data.length, System.currentTimeMillis())
      remember(path, data)
    }
  }

  override def open(path: Path): FSDataInputStream =
    if (other != null) other.open(path)
    else synchronized {
      val known = if (isIn(path)) contents.get(path.getName) else null
      CheckpointFiles.input(if (known != null) known
        else {
          val data = files.read(path).data
          if (isIn(path)) remember(path, data)
          data
        })
    }

  override def list(path: Path, filter: PathFilter): Array[FileStatus] =
    if (other != null) other.list(path, filter)
    else {
      val listed = if (path == root) synchronized(current.values.toList) else files.list(path)
      listed.map(CheckpointFiles.statusOf(path, _)).filter(each => filter.accept(each.getPath)).toArray
    }

  /** Folders are where files are. */
  override def mkdirs(path: Path): Unit = if (other != null) other.mkdirs(path) else if (path == root) isMade = true

  override def exists(path: Path): Boolean =
    if (other != null) other.exists(path)
    // Of descriptions of operators, the root is the file.
    else if (path == root) isMade || synchronized(current.nonEmpty) || files.find(path).isDefined
    else if (isIn(path) && synchronized(newestBatch >= 0)) synchronized(current.contains(path.getName))
    else isThere(path) || files.list(path).nonEmpty

  /** Whether a file is there; what it has is wanted next. */
  private def isThere(path: Path): Boolean = {
    val content = files.find(path)
    if (isIn(path)) content.foreach(each => synchronized(remember(path, each.data)))
    content.isDefined
  }

  /** A failure ends no query: the files are deleted with the next ones, or by the next run. */
  override def delete(path: Path): Unit =
    if (other != null) other.delete(path)
    else {
      val isOld = synchronized(isIn(path) && batchOf(path) >= 0 && batchOf(path) < newestBatch)
      if (isOld) deleteLater(path)
      else {
        synchronized(forget(path))
        tryToDelete(Seq(path))
      }
      ()
    }

  /** No log puts a file of a batch before its newest one, so that nothing waits for these. */
  private def deleteLater(path: Path): Unit = {
    val due = synchronized {
      // Spark purges numbers of batches that have no file.
      if (current.contains(path.getName)) garbage += path
      forget(path)
      val due = if (garbage.size < GarbageMax) Nil else garbage.toSeq
      garbage --= due
      due
    }
    if (due.nonEmpty && !tryToDelete(due)) synchronized(garbage ++= due)
    ()
  }

  private def forget(path: Path): Unit = if (isIn(path)) {
    if (entries != null) entries -= path.getName
    contents.remove(path.getName)
  }

  override def isLocal: Boolean = other != null && other.isLocal

  override def createCheckpointDirectory(): Path =
    if (other != null) other.createCheckpointDirectory()
    else {
      if (CheckpointPath.of(root).file.nonEmpty) throw new DynastateException(ErrorKind.Configuration,
        s"a checkpoint in DynamoDB is named by two parts, dynastate://NAMESPACE/NAME; leave out the others path=$root")
      root
    }

  private def isIn(path: Path): Boolean = path.getParent == root

  /** What is in the folder. */
  private def current: mutable.Map[String, FileEntry] =
    if (entries != null) entries
    else {
      val listed = mutable.LinkedHashMap.empty[String, FileEntry]
      files.list(root).filterNot(each => garbage.contains(new Path(root, each.name)))
        .foreach(each => listed(each.name) = each)
      if (newestBatch >= 0) entries = listed
      listed
    }

  private def remember(path: Path, data: Array[Byte]): Unit =
    if (data.length <= ContentBytesMax) contents.put(path.getName, data)

  /** Whether the files are deleted; false: an error is logged. */
  private def tryToDelete(paths: Seq[Path]): Boolean =
    try {
      files.delete(paths)
      true
    } catch {
      case NonFatal(e) =>
        log.warn(s"files of a checkpoint were not deleted yet folder=$root files=${paths.size}: ${e.getMessage}")
        false
    }
}

object DynastateCheckpointFileManager {
  private val log = LoggerFactory.getLogger("io.dynastate.Checkpoint")
  /** Spark reads the last two files of a log, and of sources those of a batch. */
  private val ContentsMax = 16
  private val ContentBytesMax = 1 << 20
  /** A request deletes up to 25 items. */
  private val GarbageMax = 24
  /** The class of this file, and where the one is that was set before. */
  private val Setting = "spark.sql.streaming.checkpointFileManagerClass"
  private val OtherSetting = "spark.dynastate.checkpointFileManagerClass"

  private def otherManager(path: Path, hadoopConf: Configuration): SparkCheckpoints.Manager = {
    val conf = new Configuration(hadoopConf)
    // A session that is connected does not know what the application has set.
    val application = Option(SparkEnv.get).flatMap(_.conf.getOption(Setting))
      .filter(_ != classOf[DynastateCheckpointFileManager].getName)
    Option(hadoopConf.get(OtherSetting)).orElse(application) match {
      case Some(name) => conf.set(Setting, name)
      case None => conf.unset(Setting)
    }
    SparkCheckpoints.managerOf(path, conf)
  }

  /** The batch whose file it is, such as `7` and `7.compact`; -1: it is of none. */
  private def batchOf(path: Path): Long = Try(path.getName.takeWhile(_.isDigit).toLong).getOrElse(-1L)
}
