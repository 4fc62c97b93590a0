package io.dynastate

import scala.collection.convert.AsScalaExtensions

/** Views of Java's collections, `asScala`, as Scala 2.13 has them. */
private[dynastate] object CollectionConverters extends AsScalaExtensions
