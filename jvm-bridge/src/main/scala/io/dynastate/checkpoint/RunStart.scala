package io.dynastate.checkpoint

import java.nio.charset.StandardCharsets.UTF_8
import java.util.WeakHashMap

import scala.collection.mutable

import io.dynastate.CollectionConverters._
import io.dynastate.bridge.{FileContent, FileEntry, StoredFile}

/** The files of a checkpoint when a run of its query starts, which the thread of the run reads by one request. Spark
 * wants most of them before the first commit of the run, many of them several times.
 *
 * Only that thread is answered from here, and only until the run commits a batch. What this process puts or deletes
 * meanwhile is put and deleted here. Files that another run writes meanwhile may be missed, some of them or all: then
 * the conditional put refuses this run, or the state does, whose newest versions are the other one's. Safe for
 * threads.
 */
private[checkpoint] final class RunStart private (checkpoint: String) {
  /** By path; null: they are not read yet, or not known any longer. */
  private[this] var files: mutable.TreeMap[String, StoredFile] = _
  private[this] var isOver = false

  private def begin(all: Seq[StoredFile]): Unit =
    synchronized { if (!isOver) files = mutable.TreeMap(all.map(each => each.path -> each): _*) }

  private def end(): Unit = synchronized {
    isOver = true
    files = null
  }

  /** The file at a path, or that none is there. None: not known here. */
  def find(path: String): Option[Option[FileContent]] = synchronized {
    if (files == null) None
    else files.get(path) match {
      case Some(file) => file.data.map(data => Some(FileContent(data, file.time)))
      case None => Some(None)
    }
  }

  /** What is directly in a folder. None: not known here. */
  def list(folder: String): Option[Seq[FileEntry]] = synchronized {
    Option(files).map { files =>
      val prefix = if (folder.isEmpty) "" else s"$folder/"
      val entries = mutable.LinkedHashMap.empty[String, FileEntry]
      files.iteratorFrom(prefix).takeWhile(_._1.startsWith(prefix)).foreach { case (path, file) =>
        val name = path.substring(prefix.length).takeWhile(_ != '/')
        val isFolder = prefix.length + name.length < path.length
        val time = math.max(file.time, entries.get(name).fold(0L)(_.time))
        entries(name) = FileEntry(name, isFolder, if (isFolder) 0 else file.bytes, time)
      }
      entries.values.toList
    }
  }

  private def put(path: String, data: Array[Byte]): Unit = synchronized {
    if (files == null || path.startsWith(RunStart.Commits)) end()
    else files(path) = StoredFile(path, data.length, System.currentTimeMillis(), Some(data))
  }

  private def delete(path: String): Unit = synchronized {
    if (files == null || path.isEmpty) end()
    else files --= files.keys.filter(each => each == path || each.startsWith(s"$path/")).toList
  }

  private def isOf(checkpoint: String): Boolean = this.checkpoint == checkpoint
}

private[checkpoint] object RunStart {
  private val Commits = "commits/"
  /** Spark names the thread of a run so, and adds `[id = QUERY, runId = RUN]`. */
  private val ThreadName = "stream execution thread for "
  private val QueryId = """"id"\s*:\s*"([^"]+)"""".r.unanchored
  private val byThread = new WeakHashMap[Thread, RunStart]

  /** What the thread of a run knows of its checkpoint, which is the first one that it reads, by `readAll`. None: this
   * thread is not the one of a run, or the checkpoint is not its own.
   */
  def of(checkpoint: String, readAll: => Seq[StoredFile]): Option[RunStart] = {
    val thread = Thread.currentThread
    if (!thread.getName.startsWith(ThreadName)) None
    else {
      if (!byThread.synchronized(byThread.containsKey(thread))) {
        val start = new RunStart(checkpoint)
        byThread.synchronized(byThread.put(thread, start))
        val all = readAll
        if (all.exists(isMetadataOf(_, thread.getName))) start.begin(all)
      }
      startsOf(checkpoint).find(_ eq byThread.synchronized(byThread.get(thread)))
    }
  }

  private def isMetadataOf(file: StoredFile, threadName: String): Boolean = file.path == "metadata" &&
    file.data.exists(new String(_, UTF_8) match {
      case QueryId(id) => threadName.contains(s"[id = $id,")
      case _ => false
    })

  /** A file was put. */
  def put(checkpoint: String, path: String, data: Array[Byte]): Unit = startsOf(checkpoint).foreach(_.put(path, data))

  /** Files were deleted, and all that was in folders. */
  def delete(checkpoint: String, paths: Seq[String]): Unit =
    startsOf(checkpoint).foreach(start => paths.foreach(start.delete))

  /** What is in a checkpoint is not known any longer: a put or delete has failed, or was refused. */
  def end(checkpoint: String): Unit = startsOf(checkpoint).foreach(_.end())

  private def startsOf(checkpoint: String): Seq[RunStart] =
    byThread.synchronized(byThread.values.asScala.filter(_.isOf(checkpoint)).toSeq)
}
