package io.dynastate.memory;

import java.io.IOException;
import java.io.PrintWriter;
import java.io.StringWriter;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/** `Main SECONDS [SCENARIO ...]`: for each scenario a line, tab-separated: `passed` or `failed`, name, schedules, milliseconds. */
public final class Main {
    private static final Map<String, Schedules.Part> SCENARIOS = new LinkedHashMap<>();

    static {
        SCENARIOS.put("iterate beside folds", () -> VersionThreads.iterateBesideFolds());
        SCENARIOS.put("write pages at once", () -> DiskThreads.writeAtOnce());
        SCENARIOS.put("get beside folds", () -> VersionThreads.getBesideFolds());
        SCENARIOS.put("evict beside reads", () -> CacheThreads.evictBesideReads());
    }

    private Main() { }

    /** What each thread did, in short; in whole it is in a file. */
    private static String reported(String name, Throwable error) throws IOException {
        StringWriter whole = new StringWriter();
        error.printStackTrace(new PrintWriter(whole));
        Path file = Path.of(name.replace(' ', '-') + ".txt").toAbsolutePath();
        Files.writeString(file, whole.toString());
        return whole.toString().split("\nDetailed trace:", 2)[0] + "\nin whole: " + file;
    }

    public static void main(String[] words) throws IOException {
        List<String> names = List.of(words).subList(1, words.length);
        if (!SCENARIOS.keySet().containsAll(names)) throw new IllegalArgumentException("scenarios are " + SCENARIOS.keySet());
        Evacuations.begin();
        boolean hasFailed = false;
        for (Map.Entry<String, Schedules.Part> each : SCENARIOS.entrySet()) {
            if (names.isEmpty() || names.contains(each.getKey())) {
                long startNanos = System.nanoTime();
                Throwable error = null;
                try {
                    Schedules.tryAll(each.getValue(), Long.parseLong(words[0]));
                } catch (Throwable e) {
                    error = e;
                    hasFailed = true;
                }
                long millis = (System.nanoTime() - startNanos) / 1_000_000;
                System.out.println((error == null ? "passed\t" : "failed\t") + each.getKey() + "\t" + Schedules.count() + "\t" + millis);
                if (error != null) System.out.println(reported(each.getKey(), error));
            }
        }
        System.exit(hasFailed ? 1 : 0);
    }
}
