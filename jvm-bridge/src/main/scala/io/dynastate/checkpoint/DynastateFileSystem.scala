package io.dynastate.checkpoint

import java.io.{ByteArrayOutputStream, FileNotFoundException, IOException}
import java.net.URI
import java.util.concurrent.{ConcurrentHashMap, TimeUnit}

import io.dynastate.bridge.FileEntry
import io.dynastate.spark.ProviderSettings
import org.apache.hadoop.conf.Configuration
import org.apache.hadoop.fs._
import org.apache.hadoop.fs.permission.FsPermission
import org.apache.hadoop.util.Progressable

/** Checkpoints of streaming queries in DynamoDB, `dynastate://NAMESPACE/NAME`, as a file system of Hadoop: for Spark's
 * state readers, for tools, and for what a query does without a `CheckpointFileManager`. A file is complete or not
 * there, and no two writers make the same one. Folders are there as long as something is in them, and for the process
 * that made them. Data files are refused.
 */
final class DynastateFileSystem extends FileSystem {
  private[this] var uri: URI = _
  private[this] var files: CheckpointFiles = _
  /** The folders in the folder that was listed last, and when. */
  @volatile private[this] var listed = (0L, Set.empty[Path])
  /** Folders that were made here, in which nothing may be. */
  private[this] val made = ConcurrentHashMap.newKeySet[Path]()

  override def getScheme: String = ProviderSettings.CheckpointScheme

  override def initialize(name: URI, conf: Configuration): Unit = {
    super.initialize(name, conf)
    setConf(conf)
    uri = URI.create(s"$getScheme://${name.getAuthority}")
    files = new CheckpointFiles(conf)
  }

  override def getUri: URI = uri

  override def getWorkingDirectory: Path = new Path(s"$uri/")

  override def setWorkingDirectory(path: Path): Unit = ()

  override def open(path: Path, bufferBytes: Int): FSDataInputStream = CheckpointFiles.input(files.read(path).data)

  override def create(path: Path, permission: FsPermission, overwrite: Boolean, bufferBytes: Int, replication: Short,
      blockBytes: Long, progress: Progressable): FSDataOutputStream = {
    refuseData(path)
    new FSDataOutputStream(
      new ByteArrayOutputStream {
        private[this] var isClosed = false

        override def close(): Unit = if (!isClosed) {
          isClosed = true
          files.put(path, toByteArray, overwrite)
        }
      }, null)
  }

  override def append(path: Path, bufferBytes: Int, progress: Progressable): FSDataOutputStream =
    throw new UnsupportedOperationException(s"files of checkpoints in DynamoDB do not grow path=$path")

  /** Of a file only. False: the new name is taken, or there is no such file. */
  override def rename(from: Path, to: Path): Boolean = files.find(from).exists { content =>
    try {
      files.put(to, content.data, overwrites = false)
      files.delete(Seq(from))
      true
    } catch { case _: FileAlreadyExistsException => false }
  }

  override def delete(path: Path, recursive: Boolean): Boolean = {
    val exists = find(path).isDefined
    if (exists && !recursive && files.find(path).isEmpty && files.list(path).nonEmpty)
      throw new PathIsNotEmptyDirectoryException(path.toString)
    if (exists) files.delete(Seq(path))
    made.remove(path)
    exists
  }

  override def listStatus(path: Path): Array[FileStatus] = {
    val entries = files.list(path)
    listed = (System.nanoTime(), entries.filter(_.isFolder).map(entry => new Path(path, entry.name)).toSet)
    if (entries.nonEmpty) entries.map(CheckpointFiles.statusOf(path, _)).toArray
    else Some(getFileStatus(path)).filter(_.isFile).toArray
  }

  override def mkdirs(path: Path, permission: FsPermission): Boolean = {
    refuseData(path)
    made.add(path)
    true
  }

  override def getFileStatus(path: Path): FileStatus =
    find(path).getOrElse(throw new FileNotFoundException(s"$path is not there"))

  private def find(path: Path): Option[FileStatus] =
    if (path.isRoot || isListed(path)) Some(folder(path))
    else files.find(path).map(content =>
      CheckpointFiles.status(path, FileEntry(path.getName, isFolder = false, content.data.length, content.time)))
      .orElse(Some(folder(path)).filter(_ => made.contains(path) || files.list(path).nonEmpty || isPartition(path)))

  /** Whether a path is the folder of a partition, in which nothing is: the folder of its operator lists it. */
  private def isPartition(path: Path): Boolean = CheckpointPath.of(path).isOfPartition &&
    files.list(path.getParent).exists(entry => entry.isFolder && entry.name == path.getName)

  /** Whether a folder was listed just now: Spark's state reader then looks at each of them. */
  private def isListed(path: Path): Boolean = {
    val (time, folders) = listed
    folders.contains(path) && System.nanoTime() - time < DynastateFileSystem.ListedNanos
  }

  private def folder(path: Path): FileStatus =
    CheckpointFiles.status(path, FileEntry(path.getName, isFolder = true, 0, 0))

  /** What jobs and sinks make where they write data. */
  private def refuseData(path: Path): Unit =
    if (path.toUri.getPath.split('/').exists(part => part == "_temporary" || part == "_spark_metadata"))
      throw new IOException(
        s"$getScheme:// is for checkpoints of queries; write data to another file system path=$path")
}

private object DynastateFileSystem {
  private val ListedNanos = TimeUnit.SECONDS.toNanos(10)
}
