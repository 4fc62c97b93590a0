package io.dynastate.bridge

import java.io.{BufferedInputStream, DataInputStream, EOFException, IOException}
import java.net.{StandardProtocolFamily, UnixDomainSocketAddress}
import java.nio.{BufferUnderflowException, ByteBuffer}
import java.nio.channels.{Channels, ClosedByInterruptException, SocketChannel}
import java.util.concurrent.{ScheduledExecutorService, ScheduledThreadPoolExecutor, TimeUnit}

import scala.util.control.NonFatal

import io.dynastate.{DaemonThreads, DynastateException, ErrorKind}
import io.dynastate.memory.{Attempt, ChangedBuckets, HeldChanges, Version}
import jdk.net.ExtendedSocketOptions

/** The answer to OPEN and FIND: a version, and which of the versions held the changes start from (0: none). */
final case class Found(version: Long, attempt: Attempt, base: Long, baseAttempt: Attempt, schema: String)

/** Content of a version: keys by column family, and in how many buckets, 2^bits, its rows are best read. */
final case class Content(bits: Int, keys: Array[Long])

/** What follows on the rows of the snapshot of a version (0: there is none): the changes after version `after`, of all
 * buckets `rawBytes`. In the answer to READ the changes that the reader holds come before them exactly if
 * `appliesHeld`.
 */
final case class Deltas(snapshot: Long, after: Long, rawBytes: Long, appliesHeld: Boolean)

/** The answer to SNAPSHOT that accepts it, in 2^bits buckets; those unchanged since the snapshot of version `base` may
 * be left out (0: none).
 */
final case class Wanted(base: Long, bits: Int)

/** One conversation with the sidecar. Legal order, as in docs/protocol.md:
 *
 * {{{
 * (check | open | find | read | changes nextChanges* | cleanUp | begin append* [flush] beginCommit committed
 *  | putFile | getFile | listFiles | deleteFiles | readFiles
 *  | (snapshot | import) [(bucket append*)* endSnapshot])* [abort]
 * }}}
 *
 * A `snapshot` that is not wanted is over with its answer.
 *
 * An I/O error or an overdue answer closes it for good; `release` then discards it. Used by one thread at a time, but
 * any thread may abort it.
 */
final class Connection private (channel: SocketChannel, process: SidecarProcess, settings: String) {
  private[this] val in =
    new DataInputStream(new BufferedInputStream(Channels.newInputStream(channel), Protocol.SliceBytes))
  /** Frames without an answer that were not sent yet. One that may be long, or has an answer, takes them with it: a
   * small commit is one write.
   */
  private[this] val buffer = ByteBuffer.allocate(Connection.HeldBytes)
  @volatile private[this] var isOverdue = false
  @volatile private[this] var isAborted = false

  def isUsable: Boolean = channel.isOpen && process.isAlive

  /** Check that DynamoDB can be reached and the tables fit; one out of reach is reported within seconds. */
  def check(deadlineSeconds: Long): Unit = converse("looking for the tables") {
    send(Protocol.check())
    expect(Protocol.Checked, receive(deadlineSeconds))
  }

  /** Open a version for a run, which a bare number is resolved for. `onFound` is called before changes arrive through
   * `onChanges`, oldest first, each valid until it returns; a second call voids what came before. `onDeltas` is called
   * if they begin with a snapshot, with its version: after its rows, before the changes since. Returns the counters of
   * docs/metrics.md.
   */
  def open(store: String, run: QueryRun, version: Long, attempt: Attempt, have: Seq[(Long, Attempt)],
      deadlineSeconds: Long)(
      onFound: Found => Unit, onDeltas: Long => Unit, onChanges: (Int, ByteBuffer) => Unit): Map[String, Long] =
    converse(s"opening version $version of store=$store") {
      if (attempt == Attempt.None) hold(Connection.SendDeadlineSeconds, Protocol.run(run))
      send(Protocol.open(store, version, attempt, have))
      onFound(foundIn(expect(Protocol.Found, receive(deadlineSeconds))))
      changesUntilOpened(deadlineSeconds, onFound, deltas => onDeltas(deltas.snapshot), onChanges)
    }

  /** Find a version for a run, without its rows: keys by family, the bits of buckets to read rows by, and counters. */
  def find(store: String, run: QueryRun, version: Long, attempt: Attempt, deadlineSeconds: Long): (Found, Content,
      Map[String, Long]) =
    converse(s"finding version $version of store=$store") {
      if (attempt == Attempt.None) hold(Connection.SendDeadlineSeconds, Protocol.run(run))
      send(Protocol.find(store, version, attempt))
      val answer = foundIn(expect(Protocol.Found, receive(deadlineSeconds)))
      val body = expect(Protocol.Content, receive(deadlineSeconds))
      val bits = body.get & 0xff
      require(bits <= ChangedBuckets.HashBits, s"a version lies in too many buckets bits=$bits")
      (answer, Content(bits, Protocol.takeKeys(body)),
        Protocol.takeCounters(expect(Protocol.Opened, receive(deadlineSeconds))))
    }

  /** Read the rows of a version that lie in some of 2^bits buckets, as changes, oldest first, with other rows among
   * them. `onDeltas` is called after the rows of the snapshot, and before the changes since; it says whether
   * `baseChanges` comes between them. Returns counters.
   */
  def read(store: String, version: Version, baseChanges: HeldChanges, bits: Int, buckets: Seq[Int],
      deadlineSeconds: Long)(
      onRestart: () => Unit, onDeltas: Deltas => Unit, onChanges: (Int, ByteBuffer) => Unit): Map[String, Long] =
    converse(s"reading buckets of version $version of store=$store") {
      send(Protocol.read(store, version.number, version.attempt, baseChanges.snapshot, baseChanges.version,
          baseChanges.attempt, bits,
          buckets))
      changesUntilOpened(deadlineSeconds, _ => onRestart(), onDeltas, onChanges, isRead = true)
    }

  /** Read the changes of versions, one after the other, as they were committed. Returns counters. */
  def readChanges(store: String, first: Long, last: Long, attempt: Attempt, deadlineSeconds: Long)(
      onChanges: (Int, ByteBuffer) => Unit): Map[String, Long] =
    converse(s"reading changes of store=$store") {
      send(Protocol.changes(store, first, last, attempt))
      expect(Protocol.Found, receive(deadlineSeconds))
      changesUntilOpened(deadlineSeconds, _ => (), _ => (), onChanges)
    }

  /** Ask for the changes of each version from `first` to `last`, as they were committed; `nextChanges` reads them. */
  def changes(store: String, first: Long, last: Long, attempt: Attempt, deadlineSeconds: Long): Found =
    converse(s"reading changes of store=$store") {
      send(Protocol.changes(store, first, last, attempt))
      foundIn(expect(Protocol.Found, receive(deadlineSeconds)))
    }

  /** The next changes, after the frames that name their version; None after the last. */
  def nextChanges(deadlineSeconds: Long)(onVersion: Long => Unit): Option[ByteBuffer] = converse("reading changes") {
    var frame = receive(deadlineSeconds)
    while (frame.frameType == Protocol.ChangesOf) {
      onVersion(frame.body.getLong)
      frame = receive(deadlineSeconds)
    }
    if (frame.frameType == Protocol.Rows || frame.frameType == Protocol.Packed) Some(Protocol.takeRows(frame)._2)
    else {
      expect(Protocol.Opened, frame)
      None
    }
  }

  def begin(store: String, run: QueryRun, base: Version, attempt: Attempt): Unit = converse(s"writing store=$store")(
    hold(Connection.SendDeadlineSeconds, Protocol.begin(store, run, base.number, base.attempt, attempt)))

  def append(records: Int, hashMin: Int, hashMax: Int, changes: Array[Byte], length: Int, deadlineSeconds: Long): Unit =
    converse("writing changes")(hold(deadlineSeconds, Protocol.appendHead(records, hashMin, hashMax, length),
        ByteBuffer.wrap(changes, 0, length)))

  /** Let the engine write what waits for more changes: a commit comes next. */
  def flush(deadlineSeconds: Long): Unit =
    converse("writing changes")(within(deadlineSeconds)(sendAll(Protocol.flush())))

  /** Let the engine commit a version. */
  def beginCommit(version: Version, schema: String, deadlineSeconds: Long): Unit = committing {
    // Queued behind changes that wait for DynamoDB, it may take as long as an answer.
    hold(deadlineSeconds, Protocol.added(version.added))
    within(deadlineSeconds)(sendAll(Protocol.commit(version.keys, schema)))
  }

  /** Wait until the version is committed, and return counters. */
  def committed(deadlineSeconds: Long): Map[String, Long] = committing {
    val body = expect(Protocol.Committed, receive(deadlineSeconds))
    body.getLong
    Protocol.takeCounters(body)
  }

  private def committing[A](body: => A): A =
    converse("committing: it may or may not have happened, and a retry of the task is safe", ErrorKind.Unknown)(body)

  /** Offer a version as a snapshot. Left: it is not wanted now, with counters. Right: send its buckets, by `bucket` and
   * `append`, then `endSnapshot`.
   */
  def snapshot(store: String, runId: String, version: Version, stateBytes: Long, minDeltas: Int,
      deadlineSeconds: Long): Either[Map[String, Long], Wanted] =
    converse(s"offering a snapshot of store=$store") {
      send(Protocol.snapshot(store, runId, version.number, version.attempt, stateBytes, minDeltas))
      val frame = receive(deadlineSeconds)
      if (frame.frameType == Protocol.Maintained) Left(Protocol.takeCounters(frame.body)) else Right(wantedIn(frame))
    }

  /** Begin the import of a version. Its buckets follow as those of a snapshot, and `endSnapshot` commits it. */
  def importVersion(store: String, run: QueryRun, version: Version, stateBytes: Long, deadlineSeconds: Long): Wanted =
    converse(s"importing a version store=$store") {
      send(Protocol.importVersion(store, run, version.number, version.attempt, stateBytes, version.keys,
          version.schema))
      wantedIn(receive(deadlineSeconds))
    }

  /** Begin a bucket: the rows appended from here on lie in it. */
  def bucket(number: Int, deadlineSeconds: Long): Unit =
    converse("writing a snapshot")(within(deadlineSeconds)(sendAll(Protocol.bucket(number))))

  /** Commit what was sent as a snapshot, and return counters. */
  def endSnapshot(deadlineSeconds: Long): Map[String, Long] = converse("ending a snapshot") {
    within(deadlineSeconds)(sendAll(Protocol.snapshotEnd()))
    maintained(deadlineSeconds)
  }

  /** Delete what no retained version needs, and return counters. */
  def cleanUp(store: String, runId: String, version: Version, retain: Int, least: Int, most: Int,
      deadlineSeconds: Long): Map[String, Long] =
    converse(s"cleaning up store=$store") {
      send(Protocol.cleanUp(store, runId, version.number, version.attempt, retain, least, most))
      maintained(deadlineSeconds)
    }

  /** Put a file of a checkpoint; false: it is there already, by another writer, and was not overwritten. */
  def putFile(checkpoint: String, file: String, data: Array[Byte], overwrites: Boolean,
      deadlineSeconds: Long): Boolean =
    converse(s"writing the file $file of checkpoint=$checkpoint", ErrorKind.Unknown) {
      within(deadlineSeconds)(sendAll(Protocol.filePut(checkpoint, file, overwrites, data)))
      stored(deadlineSeconds)
    }

  /** Read a file of a checkpoint. Returns None if it is not there. */
  def getFile(checkpoint: String, file: String, deadlineSeconds: Long): Option[FileContent] =
    converse(s"reading the file $file of checkpoint=$checkpoint") {
      send(Protocol.fileGet(checkpoint, file))
      val (content, counters) = Protocol.takeFile(expect(Protocol.File, receive(deadlineSeconds)))
      CheckpointCosts.add(counters)
      content
    }

  /** List what is in a folder of a checkpoint; `""` is its own folder. */
  def listFiles(checkpoint: String, folder: String, deadlineSeconds: Long): Seq[FileEntry] =
    converse(s"listing the folder $folder of checkpoint=$checkpoint") {
      send(Protocol.fileList(checkpoint, folder))
      receiveAll(Protocol.Files, deadlineSeconds)(Protocol.takeFiles).flatten
    }

  /** Read all files of a checkpoint. */
  def readFiles(checkpoint: String, deadlineSeconds: Long): Seq[StoredFile] =
    converse(s"reading checkpoint=$checkpoint") {
      send(Protocol.checkpointRead(checkpoint))
      receiveAll(Protocol.CheckpointFile, deadlineSeconds)(Protocol.takeStoredFile)
    }

  /** The frames of a type, up to an OPENED. */
  private def receiveAll[A](frameType: Int, deadlineSeconds: Long)(take: ByteBuffer => A): Seq[A] = {
    val all = Seq.newBuilder[A]
    var frame = receive(deadlineSeconds)
    while (frame.frameType == frameType) {
      all += take(frame.body)
      frame = receive(deadlineSeconds)
    }
    CheckpointCosts.add(Protocol.takeCounters(expect(Protocol.Opened, frame)))
    all.result()
  }

  /** Delete files of a checkpoint, and all that is in folders. */
  def deleteFiles(checkpoint: String, files: Seq[String], deadlineSeconds: Long): Unit =
    converse(s"deleting files of checkpoint=$checkpoint") {
      send(Protocol.fileDelete(checkpoint, files))
      stored(deadlineSeconds)
      ()
    }

  /** What a STORED answers. */
  private def stored(deadlineSeconds: Long): Boolean = {
    val body = expect(Protocol.Stored, receive(deadlineSeconds))
    val isStored = Protocol.takeFlag(body)
    CheckpointCosts.add(Protocol.takeCounters(body))
    isStored
  }

  /** Abort the attempt, or the snapshot: its end is an ABORT for the sidecar, and no frame can be sent between the
   * halves of one that another thread is sending.
   */
  def abort(): Unit = {
    isAborted = true
    close()
  }

  /** Return it to the pool. */
  def release(): Unit = {
    if (isUsable) process.pool.add(settings, this)
    // The process may have ended meanwhile, and did not find it in the pool.
    if (!isUsable) close()
  }

  def close(): Unit = channel.close()

  private def hello(token: Array[Byte]): Unit = converse("greeting the sidecar") {
    send(Protocol.hello(token, Sidecar.packageVersion, settings))
    expect(Protocol.Welcome, receive(Connection.HelloDeadlineSeconds))
  }

  private def changesUntilOpened(deadlineSeconds: Long, onFound: Found => Unit, onDeltas: Deltas => Unit,
      onChanges: (Int, ByteBuffer) => Unit, isRead: Boolean = false): Map[String, Long] = {
    // A load of new arrays for each frame would have most of the JVM's young generation, and make it collect that.
    val packed, unpacked = new Connection.ReusedArray
    var frame = receive(deadlineSeconds, packed)
    while (frame.frameType != Protocol.Opened) {
      frame.frameType match {
        case Protocol.Rows | Protocol.Packed =>
          val (records, changes) = Protocol.takeRows(frame, unpacked)
          onChanges(records, changes)
        case Protocol.Held if isRead =>
          val appliesHeld = Protocol.takeFlag(frame.body)
          onDeltas(deltasIn(expect(Protocol.Deltas, receive(deadlineSeconds, packed)), appliesHeld))
        case Protocol.Deltas if !isRead => onDeltas(deltasIn(frame.body, appliesHeld = false))
        case Protocol.ChangesOf => ()
        case _ => onFound(foundIn(expect(Protocol.Found, frame)))
      }
      frame = receive(deadlineSeconds, packed)
    }
    Protocol.takeCounters(frame.body)
  }

  private def foundIn(body: ByteBuffer): Found =
    Found(body.getLong, Attempt.readFrom(body), body.getLong, Attempt.readFrom(body), Protocol.takeText(body))

  private def deltasIn(body: ByteBuffer, appliesHeld: Boolean): Deltas =
    Deltas(body.getLong, body.getLong, body.getLong, appliesHeld)

  private def wantedIn(frame: Protocol.Frame): Wanted = {
    val body = expect(Protocol.Wanted, frame)
    val answer = Wanted(body.getLong, body.get & 0xff)
    require(answer.bits <= ChangedBuckets.HashBits, s"a snapshot is wanted in too many buckets bits=${answer.bits}")
    answer
  }

  private def maintained(deadlineSeconds: Long): Map[String, Long] =
    Protocol.takeCounters(expect(Protocol.Maintained, receive(deadlineSeconds)))

  private def converse[A](doing: String, kind: Int = ErrorKind.Unavailable)(body: => A): A =
    try body
    catch {
      case e: DynastateException => throw e
      case e: ClosedByInterruptException => throw e // Spark kills the task
      case e: IOException if isAborted => throw new DynastateException(kind, s"the task was aborted; while $doing", e)
      case e: IOException =>
        val error = lastError()
        close()
        if (error.isDefined) throw error.get
        val why = if (isOverdue) "the sidecar did not answer in time" else s"the sidecar is gone: ${process.exitReport}"
        throw new DynastateException(kind,
          s"$why; what was under way is dropped, and the next task, or start of the query, starts a new sidecar; " +
            s"while $doing", e)
      case e: BufferUnderflowException =>
        close()
        val what = if (kind == ErrorKind.Unknown) kind else ErrorKind.Mismatch
        throw new DynastateException(what,
          s"a frame of the sidecar ends within a field: jar and Python package may differ; while $doing", e)
      case NonFatal(e) =>
        // Half a conversation cannot be continued.
        close()
        throw e
    }

  private def send(frame: ByteBuffer): Unit = within(Connection.SendDeadlineSeconds)(sendAll(frame))

  /** Hold a frame, if there is room for it; else send all. */
  private def hold(deadlineSeconds: Long, head: ByteBuffer, changes: ByteBuffer = ByteBuffer.allocate(0)): Unit =
    if (head.remaining + changes.remaining <= buffer.remaining) buffer.put(head).put(changes)
    else within(deadlineSeconds)(sendAll(head, changes))

  private def sendAll(head: ByteBuffer, changes: ByteBuffer = ByteBuffer.allocate(0)): Unit = {
    buffer.flip()
    val all = Array(buffer, head, changes)
    val end = changes.limit()
    while (buffer.hasRemaining || head.hasRemaining || changes.position() < end) {
      changes.limit(math.min(end, changes.position() + Protocol.SliceBytes))
      channel.write(all)
    }
    buffer.clear()
  }

  private def receive(deadlineSeconds: Long, array: Int => Array[Byte] = new Array(_)): Protocol.Frame =
    within(deadlineSeconds) {
      val frame = Protocol.readFrame(in, array)
      if (frame.frameType == Protocol.Error) {
        val kind = frame.body.get & 0xff
        val store = Protocol.takeText(frame.body)
        val message = Protocol.takeText(frame.body)
        throw new DynastateException(kind,
          if (store.isEmpty || message.contains(store)) message else s"$message store=$store")
      }
      frame
    }

  /** The error that a sidecar reported before it closed the connection. */
  private def lastError(): Option[DynastateException] =
    try { if (!isOverdue) receive(Connection.LastErrorDeadlineSeconds); None }
    catch {
      case e: DynastateException => Some(e)
      case _: IOException => None
    }

  private def expect(frameType: Int, frame: Protocol.Frame): ByteBuffer =
    if (frame.frameType == frameType) frame.body
    else throw new EOFException(s"frame ${frame.frameType} came instead of $frameType")

  private def within[A](seconds: Long)(body: => A): A = Connection.within(channel, seconds, { isOverdue = true })(body)
}

object Connection {
  /** The changes of a small commit, and the frames around them. */
  private val HeldBytes = 16 * 1024
  private val ConnectDeadlineSeconds = 10L
  private val HelloDeadlineSeconds = 60L
  private val SendDeadlineSeconds = 60L
  private val LastErrorDeadlineSeconds = 1L

  /** Closes connections whose answer is overdue, so that no task waits for ever. */
  private[bridge] val deadlines: ScheduledExecutorService = {
    val executor = new ScheduledThreadPoolExecutor(1, new DaemonThreads("dynastate-deadlines"))
    // Nearly every deadline is cancelled long before its time, and must not stay queued until then.
    executor.setRemoveOnCancelPolicy(true)
    executor
  }

  private[bridge] def connect(process: SidecarProcess, address: UnixDomainSocketAddress, token: Array[Byte],
      settings: String): Connection = {
    val channel = SocketChannel.open(StandardProtocolFamily.UNIX)
    try within(channel, ConnectDeadlineSeconds, ())(channel.connect(address))
    catch {
      case e: IOException =>
        channel.close()
        throw new DynastateException(ErrorKind.Unavailable, s"the sidecar cannot be reached: ${process.exitReport}", e)
    }
    val connection = new Connection(channel, process, settings)
    try {
      requireSameUser(channel, process)
      connection.hello(token)
    } catch { case NonFatal(e) => connection.close(); throw e }
    connection
  }

  /** An array for several uses, one after the other. */
  private final class ReusedArray extends (Int => Array[Byte]) {
    private[this] var array = Array.emptyByteArray

    def apply(bytes: Int): Array[Byte] = {
      if (array.length < bytes) array = new Array(math.max(bytes + bytes / 4, Protocol.SliceBytes))
      array
    }
  }

  /** Close the channel at the deadline, which ends every wait on it. */
  private def within[A](channel: SocketChannel, seconds: Long, onOverdue: => Unit)(body: => A): A = {
    val task =
      deadlines.schedule(new Runnable { def run(): Unit = { onOverdue; channel.close() } }, seconds, TimeUnit.SECONDS)
    try body
    finally task.cancel(false)
  }

  /** Refuse a process of another user, which must not learn the token: the folder may be another than the one made. */
  private def requireSameUser(channel: SocketChannel, process: SidecarProcess): Unit = {
    val peer = channel.getOption(ExtendedSocketOptions.SO_PEERCRED).user.getName
    if (peer != process.user) throw new DynastateException(ErrorKind.Configuration,
      "another user's process listens in the sidecar's place; let java.io.tmpdir be a folder in which only its " +
        s"owner may rename peer=$peer user=${process.user}")
  }
}
