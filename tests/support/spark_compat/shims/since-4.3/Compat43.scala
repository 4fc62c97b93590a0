package io.dynastate.compat

trait Compat43
