package io.dynastate.memory;

import org.apache.spark.unsafe.Platform;

import scala.collection.immutable.Seq;

/** Versions of which some buckets are in memory, and the cache that evicts them. */
final class CacheThreads {
    /** Room for one bucket of two. */
    private static final int CACHE_BYTES = 20_000;
    private static final int BITS = 1;

    private CacheThreads() { }

    /** Two versions as they are durable. */
    private static final class Durable implements BucketSource {
        private static final String[] ROWS = {"", "aaaa", "bbaa"};

        @Override
        public RowTables read(Version version, int bits, Seq<Object> buckets) {
            RowTables tables = new RowTables(null, false);
            String rows = ROWS[(int) version.number()];
            for (int key = 0; key < rows.length(); key++) {
                byte[] bytes = ThreadedVersions.keyOf(key);
                int hash = EncodedRow.hash(bytes, Platform.BYTE_ARRAY_OFFSET, bytes.length);
                if (buckets.contains(ChangedBuckets.bucketOf(hash, bits))) {
                    byte[] value = ThreadedVersions.valueOf((byte) rows.charAt(key));
                    tables.apply(0, 0).put(hash, bytes, Platform.BYTE_ARRAY_OFFSET, bytes.length, value, Platform.BYTE_ARRAY_OFFSET,
                        value.length, new Row());
                }
            }
            return tables;
        }

        @Override
        public void close() { }
    }

    /** Buckets of a version come and go, are replaced by those of the next, and are discarded at the end of the store. */
    static void evictBesideReads() throws Exception {
        BucketCache cache = new BucketCache(CACHE_BYTES);
        BucketedVersions versions = new BucketedVersions(cache, new Durable(), 0, BucketedVersions.BucketBytes());
        Version first = versions.absent(1, ThreadedVersions.ATTEMPT, "", new long[] {4}, BITS);
        VersionOverlay changes = Schedules.atOnce(() -> ThreadedVersions.changed(first, "bb"));
        Schedules.together(
            () -> ThreadedVersions.expect("aaaa", ThreadedVersions.get(first)),
            () -> {
                Version second = ThreadedVersions.fold(changes);
                versions.committed(second);
                ThreadedVersions.expect("bbaa", ThreadedVersions.get(second));
            });
        versions.close();
        if (cache.bytes() != 0) throw new AssertionError("the cache counts " + cache.bytes() + " bytes without buckets");
    }
}
