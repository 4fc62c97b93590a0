package io.dynastate.checkpoint

import java.io.{ByteArrayInputStream, EOFException, FileNotFoundException}
import java.util.concurrent.ConcurrentHashMap

import io.dynastate.{DynastateException, ErrorKind}
import io.dynastate.bridge.{Connection, FileContent, FileEntry, Protocol, Sidecar}
import io.dynastate.spark.ProviderSettings
import org.apache.hadoop.conf.Configuration
import org.apache.hadoop.fs._

/** The files of checkpoints, through a sidecar of this process. Safe for threads. */
private[checkpoint] final class CheckpointFiles(hadoopConf: Configuration) {
  import CheckpointFiles._

  private[this] lazy val (python, engine, deadlineSeconds) = ProviderSettings.ofCheckpoint(hadoopConf)

  /** Put a file that is complete.
   *
   * @throws FileAlreadyExistsException another writer's file is there, and it does not overwrite
   */
  def put(path: Path, data: Array[Byte], overwrites: Boolean): Unit = {
    val at = CheckpointPath.of(path)
    if (at.isOfOtherState) throw new DynastateException(ErrorKind.Configuration,
      "only a query whose state is in dynastate can have its checkpoint in DynamoDB; set its " +
        s"spark.sql.streaming.stateStore.providerClass, or use another checkpointLocation path=$path")
    if (data.length > Protocol.FileBytesMax) throw new DynastateException(ErrorKind.Configuration,
      "a checkpoint file is larger than 512 MiB, which dynastate does not store: move the checkpoint to a folder " +
        s"with 'dynastate checkpoint' path=$path bytes=${data.length}")
    val isStored = changing(at)(_.putFile(at.checkpoint, at.file, data, overwrites, deadlineSeconds))
    if (isStored) RunStart.put(at.checkpoint, at.file, data)
    else {
      RunStart.end(at.checkpoint)
      throw new FileAlreadyExistsException(s"$path is there already")
    }
  }

  def find(path: Path): Option[FileContent] = {
    val at = CheckpointPath.of(path)
    if (at.file.isEmpty) None
    else startOf(at).flatMap(_.find(at.file)).getOrElse(converse(_.getFile(at.checkpoint, at.file, deadlineSeconds)))
  }

  /** @throws FileNotFoundException there is no such file */
  def read(path: Path): FileContent = find(path).getOrElse(throw new FileNotFoundException(s"$path is not there"))

  /** The files and folders in a folder. */
  def list(path: Path): Seq[FileEntry] = {
    val at = CheckpointPath.of(path)
    startOf(at).flatMap(_.list(at.file)).getOrElse(converse(_.listFiles(at.checkpoint, at.file, deadlineSeconds)))
  }

  /** Delete files, of one checkpoint, and all that is in folders. */
  def delete(paths: Seq[Path]): Unit = paths.map(CheckpointPath.of).groupBy(_.checkpoint).foreach {
    case (checkpoint, files) =>
      changing(files.head)(_.deleteFiles(checkpoint, files.map(_.file), deadlineSeconds))
      RunStart.delete(checkpoint, files.map(_.file))
  }

  /** What the thread of a run knows since its start. The folders of partitions come from the list of stores. */
  private def startOf(at: CheckpointPath): Option[RunStart] =
    if (at.isOfOperator) None else RunStart.of(at.checkpoint, converse(_.readFiles(at.checkpoint, deadlineSeconds)))

  /** Send a change; after a failure its outcome is not known. */
  private def changing[A](at: CheckpointPath)(conversation: Connection => A): A =
    try converse(conversation)
    catch {
      case e: Throwable =>
        RunStart.end(at.checkpoint)
        throw e
    }

  private def converse[A](conversation: Connection => A): A = Sidecar.forPython(python).converse(engine) { connection =>
    // A wrong setting is then an error within seconds.
    if (!checked.contains((python, engine))) {
      connection.check(deadlineSeconds)
      checked.add((python, engine))
    }
    conversation(connection)
  }
}

private[checkpoint] object CheckpointFiles {
  private val BlockBytes = 4L << 20
  /** Interpreters and engines whose tables were found to fit. */
  private val checked = ConcurrentHashMap.newKeySet[(String, String)]()

  def statusOf(folder: Path, entry: FileEntry): FileStatus = status(new Path(folder, entry.name), entry)

  def status(path: Path, entry: FileEntry): FileStatus =
    new FileStatus(entry.bytes, entry.isFolder, 1, BlockBytes, entry.time, path)

  def input(data: Array[Byte]): FSDataInputStream = new FSDataInputStream(new Input(data))

  private final class Input(data: Array[Byte]) extends ByteArrayInputStream(data) with Seekable
    with PositionedReadable {
    override def seek(position: Long): Unit = {
      if (position < 0 || position > count) throw new EOFException(s"a file of $count bytes has no byte $position")
      pos = position.toInt
    }

    override def getPos: Long = pos.toLong

    override def seekToNewSource(position: Long): Boolean = false

    override def read(position: Long, into: Array[Byte], offset: Int, length: Int): Int =
      if (position >= count) -1
      else {
        val bytes = math.min(length, count - position.toInt)
        System.arraycopy(buf, position.toInt, into, offset, bytes)
        bytes
      }

    override def readFully(position: Long, into: Array[Byte], offset: Int, length: Int): Unit =
      if (position + length > count) throw new EOFException(s"a file of $count bytes ends before ${position + length}")
      else read(position, into, offset, length)

    override def readFully(position: Long, into: Array[Byte]): Unit = readFully(position, into, 0, into.length)
  }
}
