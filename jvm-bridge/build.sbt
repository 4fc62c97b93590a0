// For IDEs: IntelliJ IDEA and Metals open this folder. build.py builds the jars.
// The sources for the newest Spark, Scala of tests and benchmarks, and the jars of the pyspark in .venv.

val checkout = file("..").getCanonicalFile

def shims(folder: File): Seq[File] = (folder * "since-*").get().filterNot(_.getName.contains("before"))

lazy val bridge = (project in file(".")).settings(
  name := "dynastate",
  scalaVersion := "2.13.18", // as among pyspark's jars
  scalacOptions := Seq("-deprecation", "-feature", "-release", "17"),
  autoScalaLibrary := false,
  Compile / unmanagedJars :=
    ((checkout / ".venv" / "lib" * "python3*") / "site-packages" / "pyspark" / "jars" * "*.jar").classpath,
  Test / unmanagedJars := (Compile / unmanagedJars).value,
  Compile / unmanagedSourceDirectories :=
    Seq("main", "transfer").map(baseDirectory.value / "src" / _ / "scala") ++
      shims(baseDirectory.value / "src" / "main" / "shims"),
  Test / unmanagedSourceDirectories :=
    Seq("tests/spark/scala", "tests/contract/provider/scala", "tests/support/spark_compat/scala", "benchmarks/scala")
      .map(checkout / _) ++ shims(checkout / "tests" / "support" / "spark_compat" / "shims"))
