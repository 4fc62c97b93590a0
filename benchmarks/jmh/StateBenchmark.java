package io.dynastate.memory;

import java.io.ByteArrayOutputStream;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.file.Path;
import java.util.Random;
import java.util.concurrent.TimeUnit;
import java.util.stream.IntStream;

import org.apache.spark.unsafe.Platform;
import org.openjdk.jmh.annotations.*;

/** A version: single reads and writes, the fold of a batch, and its load. */
@BenchmarkMode(Mode.AverageTime)
@Fork(value = 3, jvmArgsAppend = {"-Xms4g", "-Xmx4g"})
@Warmup(iterations = 5, time = 1)
@Measurement(iterations = 5, time = 1)
public class StateBenchmark {
    static final int UPDATES = 20_000;
    static final Attempt ATTEMPT = new Attempt(1, 1);

    /** The rows as the engine sends them. */
    @State(Scope.Benchmark)
    public static class Changes {
        @Param({"1000000"})
        int rows;
        @Param({"1"})
        long seed;
        Keys keys;
        int records;
        private byte[] changes;

        @Setup
        public void make() {
            keys = new Keys(rows, new Random(seed));
            ByteArrayOutputStream out = new ByteArrayOutputStream();
            VersionOverlay all = new VersionOverlay(VersionTree.empty("", 0, null, null), (number, hashMin, hashMax, chunk, length) -> {
                records += number;
                out.write(chunk, 0, length);
            });
            for (int row = 0; row < rows; row++) {
                all.put(0, keys.bytes, keys.next(), Keys.KEY_BYTES, keys.value, Platform.BYTE_ARRAY_OFFSET, Keys.VALUE_BYTES);
            }
            all.flush();
            changes = out.toByteArray();
        }

        Version load(RowStorage storage) {
            ChangeCollector collector = new ChangeCollector(null, storage, new long[] {rows}, true);
            collector.add(records, ByteBuffer.wrap(changes).order(ByteOrder.LITTLE_ENDIAN));
            return VersionTree.load(collector.asRows(), 1, ATTEMPT, "");
        }
    }

    /** A version with all rows on the heap, or four fifths of them on disk. */
    @State(Scope.Benchmark)
    public static class Loaded {
        @Param({"heap", "disk"})
        String place;
        Keys keys;
        VersionOverlay overlay;
        int puts;

        @Setup
        public void load(Changes changes) {
            keys = changes.keys;
            long fifth = (long) changes.rows * (EncodedRow.HeaderBytes() + Keys.KEY_BYTES + Keys.VALUE_BYTES) / 5;
            RowFile file = place.equals("heap") ? null : new RowFile(Path.of(System.getProperty("java.io.tmpdir")), Long.MAX_VALUE, false);
            overlay = open(changes.load(file == null ? null : new RowStorage(fifth, file, RowArena.PageBytes())));
        }

        void put(long key) {
            overlay.put(0, keys.bytes, key, Keys.KEY_BYTES, keys.value, Platform.BYTE_ARRAY_OFFSET, Keys.VALUE_BYTES);
        }
    }

    /** A batch of updates of random rows, and no garbage of those before it. */
    @State(Scope.Benchmark)
    public static class Batch {
        private Random random;
        private int[] rows;

        @Setup
        public void count(Changes changes) {
            random = new Random(changes.seed);
            rows = IntStream.range(0, changes.rows).toArray();
        }

        @Setup(Level.Invocation)
        public void make(Loaded loaded) {
            while (((VersionTree) loaded.overlay.version().versions()).evacuate()) { }
            for (int update = 0; update < UPDATES; update++) {
                int chosen = update + random.nextInt(rows.length - update);
                int row = rows[chosen];
                rows[chosen] = rows[update];
                rows[update] = row;
                loaded.put(loaded.keys.offset(row));
            }
            loaded.overlay.flush();
        }
    }

    @Benchmark
    @OutputTimeUnit(TimeUnit.NANOSECONDS)
    public Row get(Loaded loaded) {
        return loaded.overlay.get(0, loaded.keys.bytes, loaded.keys.next(), Keys.KEY_BYTES);
    }

    @Benchmark
    @OutputTimeUnit(TimeUnit.NANOSECONDS)
    public void put(Loaded loaded) {
        loaded.put(loaded.keys.next());
        if (++loaded.puts == UPDATES) {
            loaded.puts = 0;
            loaded.overlay.discard();
        }
    }

    @Benchmark
    @OutputTimeUnit(TimeUnit.MILLISECONDS)
    public void fold(Loaded loaded, Batch batch) {
        loaded.overlay = open(loaded.overlay.fold(ATTEMPT, ""));
    }

    @Benchmark
    @OutputTimeUnit(TimeUnit.MILLISECONDS)
    public Version load(Changes changes) {
        return changes.load(null);
    }

    private static VersionOverlay open(Version version) {
        return new VersionOverlay(version, (number, hashMin, hashMax, chunk, length) -> { });
    }
}
