package io.dynastate.memory;

import static org.openjdk.jcstress.annotations.Expect.ACCEPTABLE;
import static org.openjdk.jcstress.annotations.Expect.FORBIDDEN;

import java.nio.file.Path;

import org.openjdk.jcstress.annotations.*;
import org.openjdk.jcstress.infra.results.LLL_Result;

/** Single reads and iterators beside folds, with short rows, and with rows so long that folds also move them to other pages. */
public class VersionRaces {
    private static final int SHORT = 40;
    private static final int LONG = 8_000;
    /** Rows are spilled as soon as a page is full. Their places in the file are given to other states of the test. */
    private static final RowStorage DISK =
        new RowStorage(0, new RowFile(Path.of(System.getProperty("java.io.tmpdir")), Long.MAX_VALUE, false), 128);

    @Outcome(id = {"aaaa-, abaa-, none", "aaaa-, abaa-, abc-c"}, expect = ACCEPTABLE, desc = "each version is as it was made")
    @Outcome(expect = FORBIDDEN, desc = "a row of another version, or a torn one")
    public static class Unchanged { }

    @JCStressTest
    @JCStressMeta(Unchanged.class)
    @State
    public static class GetShortOnHeap {
        private final RacedVersions versions = new RacedVersions(null, SHORT);

        @Actor
        public void write() {
            versions.fold();
        }

        @Actor
        public void read(LLL_Result seen) {
            versions.get(seen);
        }
    }

    @JCStressTest
    @JCStressMeta(Unchanged.class)
    @State
    public static class IterateShortOnHeap {
        private final RacedVersions versions = new RacedVersions(null, SHORT);

        @Actor
        public void write() {
            versions.fold();
        }

        @Actor
        public void read(LLL_Result seen) {
            versions.iterate(seen);
        }
    }

    @JCStressTest
    @JCStressMeta(Unchanged.class)
    @State
    public static class GetLongOnHeap {
        private final RacedVersions versions = new RacedVersions(null, LONG);

        @Actor
        public void write() {
            versions.fold();
        }

        @Actor
        public void read(LLL_Result seen) {
            versions.get(seen);
        }
    }

    @JCStressTest
    @JCStressMeta(Unchanged.class)
    @State
    public static class IterateLongOnHeap {
        private final RacedVersions versions = new RacedVersions(null, LONG);

        @Actor
        public void write() {
            versions.fold();
        }

        @Actor
        public void read(LLL_Result seen) {
            versions.iterate(seen);
        }
    }

    @JCStressTest
    @JCStressMeta(Unchanged.class)
    @State
    public static class GetShortOnDisk {
        private final RacedVersions versions = new RacedVersions(DISK, SHORT);

        @Actor
        public void write() {
            versions.fold();
        }

        @Actor
        public void read(LLL_Result seen) {
            versions.get(seen);
        }
    }

    @JCStressTest
    @JCStressMeta(Unchanged.class)
    @State
    public static class IterateShortOnDisk {
        private final RacedVersions versions = new RacedVersions(DISK, SHORT);

        @Actor
        public void write() {
            versions.fold();
        }

        @Actor
        public void read(LLL_Result seen) {
            versions.iterate(seen);
        }
    }

    @JCStressTest
    @JCStressMeta(Unchanged.class)
    @State
    public static class GetLongOnDisk {
        private final RacedVersions versions = new RacedVersions(DISK, LONG);

        @Actor
        public void write() {
            versions.fold();
        }

        @Actor
        public void read(LLL_Result seen) {
            versions.get(seen);
        }
    }

    @JCStressTest
    @JCStressMeta(Unchanged.class)
    @State
    public static class IterateLongOnDisk {
        private final RacedVersions versions = new RacedVersions(DISK, LONG);

        @Actor
        public void write() {
            versions.fold();
        }

        @Actor
        public void read(LLL_Result seen) {
            versions.iterate(seen);
        }
    }
}
