package io.dynastate.core

import java.io.{BufferedInputStream, BufferedReader, DataInputStream, EOFException, IOException, InputStream, InputStreamReader, OutputStream}
import java.net.{StandardProtocolFamily, UnixDomainSocketAddress}
import java.nio.{BufferUnderflowException, ByteBuffer}
import java.nio.channels.{Channels, ClosedByInterruptException, SocketChannel}
import java.nio.charset.StandardCharsets.UTF_8
import java.nio.file.{Files, Path}
import java.nio.file.attribute.PosixFilePermissions
import java.security.SecureRandom
import java.util.HexFormat
import java.util.concurrent.{CompletableFuture, ConcurrentHashMap, ConcurrentLinkedDeque, ScheduledExecutorService}
import java.util.concurrent.{ScheduledThreadPoolExecutor, TimeoutException, TimeUnit}
import java.util.concurrent.atomic.AtomicLong
import java.util.concurrent.locks.ReentrantLock

import scala.util.control.NonFatal

import jdk.net.ExtendedSocketOptions
import org.slf4j.LoggerFactory

/** The answer to OPEN: what was found, and on which of the versions held it builds (0: on none). */
final case class Found(version: Long, attempt: Attempt, base: Long, baseAttempt: Attempt, schema: String)

/** What a version holds: keys by column family, and in how many buckets, 2^bits, its rows are best read. */
final case class Content(bits: Int, keys: Array[Long])

/** The answer to SNAPSHOT: it is wanted, in 2^bits buckets; those that are as in the snapshot of version `base` may be left out (0: none). */
final case class Wanted(base: Long, bits: Int)

/**
 * The engine's process on this executor, one for each Python interpreter: started by the first store that needs it, and
 * again after it died. Its standard input stays open as long as this JVM lives; that is how it knows when to end.
 * On its standard output it shows that it lives, or else is killed. Every wait for it has a deadline (docs/protocol.md).
 *
 * Connections are pooled: one belongs to one store from `lease` to `giveBack`.
 */
final class Sidecar private (python: String) {
  import Sidecar.{Process, log}

  /** One that a task which Spark kills need not wait for. */
  private[this] val lock = new ReentrantLock
  private[this] var process: Process = _
  private[this] var failed: DynastateException = _
  private[this] var failedAt = 0L

  /** A connection for these settings (a JSON object), new or used before. */
  def lease(settings: String): Connection = {
    val asked = System.nanoTime()
    lock.lockInterruptibly()
    val leased = try running(asked) finally lock.unlock()
    leased.connect(settings)
  }

  /** Who waited here while an interpreter did not start has the same answer; who asks after that has it started anew. */
  private[this] def running(asked: Long): Process = {
    if (process == null || !process.isAlive) {
      if (failed != null && asked - failedAt < 0) throw failed
      if (process != null) {
        log.warn(s"sidecar died, a new one is started: ${process.obituary}")
        process.end()
        process = null
      }
      try process = Process.start(python)
      catch {
        case e: DynastateException =>
          failed = e
          failedAt = System.nanoTime()
          throw e
      }
    }
    process
  }
}

object Sidecar {
  private val log = LoggerFactory.getLogger("io.dynastate.Sidecar")
  private val StartDeadlineSeconds = 60L
  /** It shows that it lives every 2 seconds; one that does not for so long hangs. */
  private val SilenceDeadlineSeconds = 20L
  private val LookSeconds = 2L
  private val LastLinesDeadlineMillis = 1000L
  private val byPython = new ConcurrentHashMap[String, Sidecar]

  /** The version of this jar, which must be the Python package's. */
  lazy val packageVersion: String = {
    val resource = classOf[Connection].getResourceAsStream("/dynastate-version.txt")
    if (resource == null) throw new DynastateException(ErrorKind.Mismatch, "the jar has no version in it; build it with 'make setup'")
    try new String(resource.readAllBytes(), UTF_8).trim finally resource.close()
  }

  def forPython(python: String): Sidecar = byPython.computeIfAbsent(python, new Sidecar(_))

  /** Closes connections whose answer is overdue, so that no task waits for ever. */
  private[core] val deadlines: ScheduledExecutorService = {
    val executor = new ScheduledThreadPoolExecutor(1, { task =>
      val thread = new Thread(task, "dynastate-deadlines")
      thread.setDaemon(true)
      thread
    })
    // Nearly every deadline is cancelled, long before its time: it must not stay queued until then.
    executor.setRemoveOnCancelPolicy(true)
    executor
  }

  /** One run of the sidecar. */
  private[core] final class Process(os: java.lang.Process, order: OutputStream, folder: Path, socket: Path, token: Array[Byte]) {
    private[this] val idle = new ConcurrentHashMap[String, ConcurrentLinkedDeque[Connection]]
    private[this] val lastLines = new ConcurrentLinkedDeque[String]
    private[this] val firstLine = new CompletableFuture[String]
    private[this] val signsOfLife = new AtomicLong
    private[this] var logCopier: Thread = _
    @volatile private[this] var hung = ""

    def isAlive: Boolean = os.isAlive

    def pid: Long = os.pid

    /** Who this JVM runs as, by the folder that it made. */
    val user: String = Files.getOwner(folder).getName

    /** How it ended, with the last lines of its log, for an error message. */
    def obituary: String = {
      val ended = os.waitFor(2, TimeUnit.SECONDS)
      val how = if (ended) s"exit code ${os.exitValue}" else "it is alive but does not answer"
      if (ended) logCopier.join(LastLinesDeadlineMillis)
      s"$hung$how; last lines of its log: ${if (lastLines.isEmpty) "none" else lastLines.toArray.mkString(" | ")}"
    }

    def connect(settings: String): Connection = {
      val waiting = idle.computeIfAbsent(settings, _ => new ConcurrentLinkedDeque[Connection])
      var connection = waiting.pollFirst()
      while (connection != null && !connection.isUsable) {
        connection.close() // the process has just ended, and does not find it in the pool
        connection = waiting.pollFirst()
      }
      if (connection != null) connection
      else Connection.connect(this, UnixDomainSocketAddress.of(socket), token, settings, waiting)
    }

    /** Close standard input, which ends the process, and remove what it may have left. */
    def end(): Unit = {
      try order.close() catch { case _: IOException => () } // it is gone already
      kill()
      removeSocket()
    }

    /** Java closes no channel that nobody has any more. */
    private def closeIdle(): Unit = idle.values.forEach(_.forEach(_.close()))

    private def removeSocket(): Unit = {
      Files.deleteIfExists(socket)
      Files.deleteIfExists(folder)
    }

    /** Kill it, also where it is stopped, with what a script in the interpreter's place has started. */
    private def kill(): Unit = {
      val started = os.descendants.toList
      os.destroyForcibly()
      started.forEach(_.destroyForcibly())
    }

    /** Copy its log into ours, and take what it says on standard output, until it ends. */
    private[core] def readOutput(): Unit = {
      os.onExit.thenRun { () =>
        firstLine.complete("")
        closeIdle()
        removeSocket()
      }
      eachLine("dynastate-sidecar-life", os.getInputStream) { line =>
        firstLine.complete(line)
        signsOfLife.incrementAndGet()
      }
      logCopier = eachLine("dynastate-sidecar-log", os.getErrorStream) { line =>
        lastLines.addLast(line)
        if (lastLines.size > 8) lastLines.pollFirst()
        if (line.startsWith("INFO") || line.startsWith("DEBUG")) log.info(line) else log.warn(line)
      }
    }

    /** In a thread of its own: nothing can end a read from a pipe that stays open. */
    private def eachLine(name: String, from: InputStream)(take: String => Unit): Thread = {
      val reader = new BufferedReader(new InputStreamReader(from, UTF_8))
      val thread = new Thread(() => {
        try Iterator.continually(reader.readLine()).takeWhile(_ != null).foreach(take)
        catch { case _: IOException => () } // the process ended
      }, name)
      thread.setDaemon(true)
      thread.start()
      thread
    }

    private[core] def awaitReady(python: String): Unit = {
      var isReady = false
      try {
        val said =
          try firstLine.get(StartDeadlineSeconds, TimeUnit.SECONDS)
          catch {
            case _: TimeoutException =>
              throw new DynastateException(ErrorKind.Unavailable, s"the sidecar did not start within $StartDeadlineSeconds s: $obituary")
          }
        isReady = said == "ready"
        if (!isReady) {
          throw new DynastateException(ErrorKind.Configuration,
            s"the sidecar did not start with the interpreter $python; the package must be installed there (pip install dynastate==$packageVersion), " +
              s"or set spark.sql.streaming.stateStore.dynastate.python to one that has it: $obituary")
        }
        watch()
      } finally {
        // Also when the task is killed while it waits.
        if (!isReady) end()
      }
    }

    /** Look again and again whether it lives. Looks are counted, not seconds: after a pause of this JVM there is one look, not many. */
    private def watch(): Unit = {
      var seen = signsOfLife.get
      var silent = 0
      val looking = deadlines.scheduleWithFixedDelay(() => {
        silent = if (signsOfLife.get == seen) silent + 1 else 0
        seen = signsOfLife.get
        if (silent == SilenceDeadlineSeconds / LookSeconds) {
          hung = s"it gave no sign of life for $SilenceDeadlineSeconds s and was killed, "
          log.warn(s"sidecar gives no sign of life for $SilenceDeadlineSeconds s and is killed pid=$pid")
          kill()
        }
      }, LookSeconds, LookSeconds, TimeUnit.SECONDS)
      os.onExit.thenRun(() => looking.cancel(false))
    }
  }

  private[core] object Process {
    /** A socket's path may have 107 bytes, and folders for temporary files of YARN and others are longer. */
    private val FolderBytesMax = 70

    private def makeFolder(): Path = {
      val usual = Path.of(System.getProperty("java.io.tmpdir"))
      val parent = if (usual.toString.getBytes(UTF_8).length <= FolderBytesMax) usual else Path.of("/tmp")
      val onlyOurs = PosixFilePermissions.asFileAttribute(PosixFilePermissions.fromString("rwx------"))
      Files.createTempDirectory(parent, "dynastate-", onlyOurs)
    }

    def start(python: String): Process = {
      val started = System.nanoTime()
      val folder = makeFolder()
      val socket = folder.resolve("socket")
      val token = new Array[Byte](Protocol.TokenBytes)
      new SecureRandom().nextBytes(token)
      val builder = new ProcessBuilder(python, "-m", "dynastate.sidecar")
      builder.environment.put("MALLOC_ARENA_MAX", "2") // a dozen threads would otherwise each keep freed memory
      builder.environment.put("PYTHONSAFEPATH", "1") // no module is taken from the executor's working directory
      val os =
        try builder.start()
        catch {
          case e: IOException =>
            Files.delete(folder)
            throw new DynastateException(ErrorKind.Configuration,
              s"the interpreter of the sidecar cannot be run; set spark.sql.streaming.stateStore.dynastate.python, or spark.pyspark.python: ${e.getMessage}", e)
        }
      val order = os.getOutputStream
      val process = new Process(os, order, folder, socket, token)
      process.readOutput()
      try {
        // JSON needs no escapes here but for what a folder's name could hold.
        val path = socket.toString.replace("\\", "\\\\").replace("\"", "\\\"")
        order.write(s"""{"socket": "$path", "token": "${HexFormat.of().formatHex(token)}"}\n""".getBytes(UTF_8))
        order.flush()
      } catch { case _: IOException => () } // it ended at once; awaitReady says why
      process.awaitReady(python)
      log.info(s"sidecar started pid=${process.pid} python=$python ms=${TimeUnit.NANOSECONDS.toMillis(System.nanoTime() - started)}")
      process
    }
  }
}

/**
 * One conversation with the sidecar. Legal order, as in docs/protocol.md:
 *
 * {{{ (check | open | find | read | changes nextChanges* | cleanUp | begin append* (commit | abort) | snapshot [(bucket append*)* (endSnapshot | abort)])* }}}
 *
 * Where `snapshot` says that none is wanted, nothing of it follows.
 *
 * An I/O error or an overdue answer ends it for good; `giveBack` then drops it.
 */
final class Connection private (channel: SocketChannel, process: Sidecar.Process, pool: ConcurrentLinkedDeque[Connection]) {
  private[this] val in = new DataInputStream(new BufferedInputStream(Channels.newInputStream(channel), 1 << 18))
  @volatile private[this] var overdue = false

  def isUsable: Boolean = channel.isOpen && process.isAlive

  /** See that DynamoDB can be reached and the tables fit; one out of reach is told within seconds. */
  def check(deadlineSeconds: Long): Unit = converse("looking for the tables") {
    send(Protocol.check())
    expect(Protocol.Checked, receive(deadlineSeconds))
  }

  /**
   * Open a version. `onFound` is called before rows arrive through `onRows` as runs of changes, oldest first; called again, it makes void
   * what came before. `onDeltas` is called if they begin with a snapshot, with its version: after its rows, before the changes since.
   * Returns what it cost, by the names of docs/metrics.md.
   */
  def open(store: String, version: Long, attempt: Attempt, have: Seq[(Long, Attempt)], deadlineSeconds: Long)(
      onFound: Found => Unit, onDeltas: Long => Unit, onRows: (Int, ByteBuffer) => Unit): Map[String, Long] =
    converse(s"opening version $version of store=$store") {
      send(Protocol.open(store, version, attempt, have))
      onFound(foundIn(expect(Protocol.Found, receive(deadlineSeconds))))
      rowsUntilOpened(deadlineSeconds, onFound, onDeltas, onRows)
    }

  /** Open a version without its rows. Returns how many keys each family has, in how many buckets (2^bits) its rows are best read, and what it cost. */
  def find(store: String, version: Long, attempt: Attempt, deadlineSeconds: Long)(onFound: (Found, Content) => Unit): Map[String, Long] =
    converse(s"finding version $version of store=$store") {
      send(Protocol.find(store, version, attempt))
      val found = foundIn(expect(Protocol.Found, receive(deadlineSeconds)))
      val body = expect(Protocol.Content, receive(deadlineSeconds))
      val bits = body.get & 0xFF
      require(bits <= ChangedBuckets.HashBits, s"a version lies in too many buckets bits=$bits")
      onFound(found, Content(bits, Protocol.takeKeys(body)))
      Protocol.takeCounters(expect(Protocol.Opened, receive(deadlineSeconds)))
    }

  /** Read the rows of a version that lie in one of 2^bits buckets, as runs of changes, oldest first, with other rows among them. Returns what it cost. */
  def read(store: String, version: Version, bits: Int, bucket: Int, deadlineSeconds: Long)(
      onAgain: () => Unit, onRows: (Int, ByteBuffer) => Unit): Map[String, Long] =
    converse(s"reading a bucket of version $version of store=$store") {
      send(Protocol.read(store, version.number, version.attempt, bits, bucket))
      rowsUntilOpened(deadlineSeconds, _ => onAgain(), _ => (), onRows)
    }

  /** Ask for the changes of each version from `first` to `last`, as they were committed; they are taken with `nextChanges`. */
  def changes(store: String, first: Long, last: Long, attempt: Attempt, deadlineSeconds: Long): Found =
    converse(s"reading changes of store=$store") {
      send(Protocol.changes(store, first, last, attempt))
      foundIn(expect(Protocol.Found, receive(deadlineSeconds)))
    }

  /** The next run of changes, behind the frames that say of which version it is; None: that was the last. */
  def nextChanges(deadlineSeconds: Long)(onVersion: Long => Unit): Option[ByteBuffer] = converse("reading changes") {
    var frame = receive(deadlineSeconds)
    while (frame.frameType == Protocol.ChangesOf) {
      onVersion(frame.body.getLong)
      frame = receive(deadlineSeconds)
    }
    if (frame.frameType == Protocol.Rows) {
      frame.body.getInt
      Some(frame.body)
    } else {
      expect(Protocol.Opened, frame)
      None
    }
  }

  def begin(store: String, run: String, checkpoint: String, base: Version, attempt: Attempt): Unit =
    converse(s"writing store=$store")(send(Protocol.begin(store, run, checkpoint, base.number, base.attempt, attempt)))

  def append(records: Int, hashMin: Int, hashMax: Int, run: Array[Byte], length: Int, deadlineSeconds: Long): Unit =
    converse("writing changes")(within(deadlineSeconds) {
      sendAll(Protocol.appendHead(records, hashMin, hashMax, length), ByteBuffer.wrap(run, 0, length))
    })

  /** Commit, and return what it cost. */
  def commit(keys: Array[Long], schema: String, deadlineSeconds: Long): Map[String, Long] =
    converse("committing: it may or may not have happened, and a retry of the task is safe", ErrorKind.Unknown) {
      // Behind changes that wait for DynamoDB, it may take as long as an answer.
      within(deadlineSeconds)(sendAll(Protocol.commit(keys, schema)))
      val body = expect(Protocol.Committed, receive(deadlineSeconds))
      body.getLong
      Protocol.takeCounters(body)
    }

  /**
   * Offer a version's content. Left: it is not wanted now, and what it cost to find that out. Right: its buckets follow, by `bucket`
   * and `append`, and at last `endSnapshot`.
   */
  def snapshot(
      store: String, run: String, version: Version, stateBytes: Long, minDeltas: Int, deadlineSeconds: Long): Either[Map[String, Long], Wanted] =
    converse(s"offering a snapshot of store=$store") {
      send(Protocol.snapshot(store, run, version.number, version.attempt, stateBytes, minDeltas))
      val frame = receive(deadlineSeconds)
      if (frame.frameType == Protocol.Maintained) Left(Protocol.takeCounters(frame.body)) else Right(wantedIn(frame))
    }

  /** Begin a version that stands on nothing. Its buckets follow as those of a snapshot, and `endSnapshot` commits it. */
  def whole(store: String, run: String, checkpoint: String, version: Version, stateBytes: Long, deadlineSeconds: Long): Wanted =
    converse(s"writing a version whole store=$store") {
      send(Protocol.whole(store, run, checkpoint, version.number, version.attempt, stateBytes, version.keys, version.schema))
      wantedIn(receive(deadlineSeconds))
    }

  /** What is appended from here on lies in this bucket. */
  def bucket(number: Int, deadlineSeconds: Long): Unit =
    converse("writing a snapshot")(within(deadlineSeconds)(sendAll(Protocol.bucket(number))))

  /** Make what was sent a snapshot, and return what it cost. */
  def endSnapshot(deadlineSeconds: Long): Map[String, Long] = converse("ending a snapshot") {
    within(deadlineSeconds)(sendAll(Protocol.snapshotEnd()))
    maintained(deadlineSeconds)
  }

  /** Remove what no retained version needs, and return what it cost. */
  def cleanUp(store: String, run: String, version: Version, retain: Int, least: Int, most: Int, deadlineSeconds: Long): Map[String, Long] =
    converse(s"cleaning up store=$store") {
      send(Protocol.cleanUp(store, run, version.number, version.attempt, retain, least, most))
      maintained(deadlineSeconds)
    }

  /** Drop the attempt, or the snapshot. There is no answer, and a sidecar that is gone has dropped it already. */
  def abort(): Unit = try send(Protocol.abort()) catch { case _: IOException => close() }

  def giveBack(): Unit = {
    if (isUsable) pool.addFirst(this)
    // Also where the process has ended meanwhile, and did not find it in the pool.
    if (!isUsable) close()
  }

  def close(): Unit = channel.close()

  private[core] def hello(token: Array[Byte], settings: String): Unit = converse("greeting the sidecar") {
    send(Protocol.hello(token, Sidecar.packageVersion, settings))
    expect(Protocol.Welcome, receive(Connection.HelloDeadlineSeconds))
  }

  private def rowsUntilOpened(
      deadlineSeconds: Long, onFound: Found => Unit, onDeltas: Long => Unit, onRows: (Int, ByteBuffer) => Unit): Map[String, Long] = {
    var frame = receive(deadlineSeconds)
    while (frame.frameType == Protocol.Rows || frame.frameType == Protocol.Deltas || frame.frameType == Protocol.Found) {
      frame.frameType match {
        case Protocol.Rows => onRows(frame.body.getInt, frame.body)
        case Protocol.Deltas => onDeltas(frame.body.getLong)
        case Protocol.Found => onFound(foundIn(frame.body))
      }
      frame = receive(deadlineSeconds)
    }
    Protocol.takeCounters(expect(Protocol.Opened, frame))
  }

  private def foundIn(body: ByteBuffer): Found =
    Found(body.getLong, Attempt.readFrom(body), body.getLong, Attempt.readFrom(body), Protocol.takeText(body))

  private def wantedIn(frame: Protocol.Frame): Wanted = {
    val body = expect(Protocol.Wanted, frame)
    val wanted = Wanted(body.getLong, body.get & 0xFF)
    require(wanted.bits <= ChangedBuckets.HashBits, s"a snapshot is wanted in too many buckets bits=${wanted.bits}")
    wanted
  }

  private def maintained(deadlineSeconds: Long): Map[String, Long] =
    Protocol.takeCounters(expect(Protocol.Maintained, receive(deadlineSeconds)))

  private def converse[A](doing: String, kind: Int = ErrorKind.Unavailable)(body: => A): A =
    try body
    catch {
      case e: DynastateException => throw e
      case e: ClosedByInterruptException => throw e // Spark kills the task
      case e: IOException =>
        val said = lastWord()
        close()
        if (said.isDefined) throw said.get
        val why = if (overdue) "the sidecar did not answer in time" else s"the sidecar is gone: ${process.obituary}"
        throw new DynastateException(kind, s"$why; this task's changes are dropped, the next task starts a new sidecar; while $doing", e)
      case e: BufferUnderflowException =>
        close()
        val what = if (kind == ErrorKind.Unknown) kind else ErrorKind.Mismatch
        throw new DynastateException(what, s"a frame of the sidecar ends within a field: jar and Python package may differ; while $doing", e)
      case NonFatal(e) =>
        // Half a conversation cannot be gone on with.
        close()
        throw e
    }

  private def send(frame: ByteBuffer): Unit = within(Connection.SendDeadlineSeconds)(sendAll(frame))

  private def sendAll(buffers: ByteBuffer*): Unit = {
    val array = buffers.toArray
    while (array.exists(_.hasRemaining)) channel.write(array)
  }

  private def receive(deadlineSeconds: Long): Protocol.Frame = within(deadlineSeconds) {
    val frame = Protocol.readFrame(in)
    if (frame.frameType == Protocol.Error) {
      val kind = frame.body.get & 0xFF
      val store = Protocol.takeText(frame.body)
      val message = Protocol.takeText(frame.body)
      throw new DynastateException(kind, if (store.isEmpty || message.contains(store)) message else s"$message store=$store")
    }
    frame
  }

  /** What a sidecar that closed the connection said before. */
  private def lastWord(): Option[DynastateException] =
    try { if (!overdue) receive(Connection.LastWordDeadlineSeconds); None }
    catch {
      case e: DynastateException => Some(e)
      case _: IOException => None
    }

  private def expect(frameType: Int, frame: Protocol.Frame): ByteBuffer =
    if (frame.frameType == frameType) frame.body else throw new EOFException(s"frame ${frame.frameType} came instead of $frameType")

  private def within[A](seconds: Long)(body: => A): A = Connection.within(channel, seconds, { overdue = true })(body)
}

object Connection {
  private val ConnectDeadlineSeconds = 10L
  private val HelloDeadlineSeconds = 60L
  private val SendDeadlineSeconds = 60L
  private val LastWordDeadlineSeconds = 1L

  private[core] def connect(
      process: Sidecar.Process, address: UnixDomainSocketAddress, token: Array[Byte], settings: String,
      pool: ConcurrentLinkedDeque[Connection]): Connection = {
    val channel = SocketChannel.open(StandardProtocolFamily.UNIX)
    try within(channel, ConnectDeadlineSeconds, ())(channel.connect(address))
    catch {
      case e: IOException =>
        channel.close()
        throw new DynastateException(ErrorKind.Unavailable, s"the sidecar cannot be reached: ${process.obituary}", e)
    }
    val connection = new Connection(channel, process, pool)
    try {
      requireSameUser(channel, process)
      connection.hello(token, settings)
    }
    catch { case NonFatal(e) => connection.close(); throw e }
    connection
  }

  /** Closes the channel at the deadline, which ends whatever waits on it. */
  private def within[A](channel: SocketChannel, seconds: Long, onOverdue: => Unit)(body: => A): A = {
    val closing = Sidecar.deadlines.schedule(new Runnable { def run(): Unit = { onOverdue; channel.close() } }, seconds, TimeUnit.SECONDS)
    try body finally closing.cancel(false)
  }

  /** The token is told to nobody but a process of our own user, whatever became of the folder since it was made. */
  private def requireSameUser(channel: SocketChannel, process: Sidecar.Process): Unit = {
    val peer = channel.getOption(ExtendedSocketOptions.SO_PEERCRED).user.getName
    if (peer != process.user)
      throw new DynastateException(ErrorKind.Configuration,
        s"another user's process listens in the sidecar's place; let java.io.tmpdir be a folder in which only its owner may rename peer=$peer user=${process.user}")
  }
}
