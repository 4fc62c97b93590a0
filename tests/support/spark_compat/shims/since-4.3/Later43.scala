package io.dynastate.later

trait Later43
