package io.dynastate.conformance

import java.nio.file.{Files, Path, Paths}
import java.util.{LinkedHashMap => JLinkedHashMap}

import scala.collection.mutable
import scala.util.control.NonFatal

import com.fasterxml.jackson.databind.ObjectMapper
import io.dynastate.compat.Absent

/** One requirement of state stores. `needs`: a provider without these must refuse. `appends`: puts are made by appends
 * to lists.
 */
final case class Case(name: String, needs: Set[Need], play: () => Unit, appends: Boolean = false)

/** A file of cases, to be played on one scene. `test_conformance.py` reads their names from the source, so they are
 * literals.
 */
abstract class Cases {
  private val cases = mutable.ListBuffer.empty[Case]

  def all: Seq[Case] = cases.toList

  protected def test(name: String, needs: Need*)(play: => Unit): Unit =
    cases += Case(name, needs.toSet, () => play)

  /** The case, with puts, and with appends in their place. */
  protected def testWithAppends(name: String, needs: Need*)(play: => Unit): Unit = {
    test(name, needs: _*)(play)
    cases += Case(s"$name${Cases.WithAppends}", needs.toSet + Need.Families, () => play, appends = true)
  }

  /** The case, without and with column families. */
  protected def testBothWays(name: String)(play: => Unit): Unit = {
    test(name)(play)
    test(s"$name-in-families", Need.Families)(play)
  }

  /** The case, without and with column families, and with appends. */
  protected def testEachWay(name: String)(play: => Unit): Unit = {
    testWithAppends(name)(play)
    test(s"$name-in-families", Need.Families)(play)
  }
}

object Cases {
  val WithAppends = "-with-appends"
}

/** Runs every case on every provider of one kind, each in its own checkpoint, and prints one JSON object a line:
 * `case`, `provider`, `ms`, and `outcome`, which is one of
 *
 *  - `ok`: every check held;
 *  - `differs: <how>`: exactly the checks that `Differences` lists did not hold, for its reason;
 *  - `unsupported: <why>`: the provider refused, as `Differences` lists;
 *  - `absent: <what>`: every check held, up to a call that this Spark does not have;
 *  - `FAIL: <what>`: anything else, such as a listed difference that the provider does not have.
 *
 * Arguments: `kind=`, `providers=NAME,NAME` of it, `root=` (a folder), and Spark conf as `name=value`; `only=` a case's
 * name.
 */
object Conformance {
  private def casesOn(scene: Scene): Seq[Case] = Seq(new BasicCases(scene), new FamilyCases(scene),
    new ScanCases(scene), new ListCases(scene), new VersionCases(scene), new LifeCycleCases(scene)).flatMap(_.all)

  def main(args: Array[String]): Unit = {
    val arguments = args.map { argument =>
      val Array(name, value) = argument.split("=", 2)
      name -> value
    }.toMap
    val folder = Paths.get(arguments("root"))
    val providers = arguments("providers").split(',').toSet
    val subjects = Subjects.of(arguments("kind"), arguments.filter(_._1.startsWith("spark.")))
      .filter(subject => providers(subject.name))
    val cases = casesOn(new Scene(subjects.head, arguments("root"), families = false))
    require(cases.map(_.name).distinct.length == cases.length, "two cases have the same name")
    for {
      subject <- subjects
      each <- cases if arguments.get("only").forall(_ == each.name) && isFor(subject, each)
    } print(subject, each, folder.resolve(subject.name).resolve(each.name))
    System.out.flush()
    // A provider may leave threads that are not daemons.
    System.exit(0)
  }

  /** Checkpoint ids belong to checkpoint format v2, in which ours runs all cases, and the shipped ones only those. */
  private def isFor(subject: Subject, each: Case): Boolean = !each.needs(Need.Ids) || subject.name != "dynastate"

  private def print(subject: Subject, each: Case, folder: Path): Unit = {
    Files.createDirectories(folder)
    val startNanos = System.nanoTime()
    val line = new JLinkedHashMap[String, Any]
    line.put("case", each.name)
    line.put("provider", subject.name)
    line.put("outcome", outcome(subject, each, folder))
    line.put("ms", (System.nanoTime() - startNanos) / 1000000)
    println(new ObjectMapper().writeValueAsString(line))
  }

  private def outcome(subject: Subject, each: Case, folder: Path): String = {
    val variant = subject.copy(ids = subject.ids || each.needs(Need.Ids))
    val scene =
      new Scene(variant, folder.toUri.toString.stripSuffix("/"), families = each.needs(Need.Families), each.appends)
    val refusals = each.needs.flatMap(Differences.refusal(subject, _))
    val error =
      try { casesOn(scene).find(_.name == each.name).get.play(); None }
      catch { case NonFatal(e) => Some(e) }
      finally scene.close()
    val refusal = error.flatMap(e => refusals.find(expected => Scene.names(e).contains(expected.condition)))
    (refusal, error) match {
      case (_, Some(absent: Absent)) if scene.failures.isEmpty => s"absent: ${absent.getMessage}"
      case (Some(expected), _) => s"unsupported: ${expected.reason}"
      case _ if refusals.nonEmpty =>
        s"FAIL: it should have refused with ${refusals.map(_.condition).mkString(" or ")}; " +
          s"${error.map(Scene.told).getOrElse("it did not refuse")}"
      case _ =>
        judged(subject, each, scene.failures ++ error.map(e => Failure(s"raises ${Scene.names(e).head}", traced(e))))
    }
  }

  private def judged(subject: Subject, each: Case, failures: Seq[Failure]): String = {
    val labels = failures.map(_.label).toSet
    Differences.of(subject, each.name) match {
      case None if labels.isEmpty => "ok"
      case Some(difference) if difference.labels == labels =>
        s"differs: ${difference.reason} [${labels.toSeq.sorted.mkString("; ")}]"
      case Some(difference) if labels.isEmpty =>
        s"FAIL: the table of differences is out of date, it says: ${difference.labels.mkString("; ")}"
      case _ => s"FAIL: ${failures.map(failure => s"${failure.label}: ${failure.message}").mkString(" | ")}"
    }
  }

  /** Where the root cause was raised, and from which line of the case. */
  private def traced(e: Throwable): String = {
    val cause = Iterator.iterate(e)(_.getCause).takeWhile(_ != null).take(8).toList.last
    val line = e.getStackTrace.find(_.getFileName.endsWith("Cases.scala"))
    s"${Scene.told(e)} at ${cause.getStackTrace.take(6).mkString(" ")} … ${line.mkString}"
  }
}
