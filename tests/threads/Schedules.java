package io.dynastate.memory;

import java.util.Set;
import java.util.concurrent.Callable;

import org.jetbrains.lincheck.Lincheck;
import org.jetbrains.lincheck.LincheckAssertionError;
import org.jetbrains.lincheck.LincheckSettings;
import org.jetbrains.lincheck.jvm.agent.LincheckInstrumentation;
import sun.nio.ch.lincheck.Injections;

/**
 * Schedules of the threads of a scenario, chosen by Lincheck's model checker, the same in each run: those that switch threads only where one
 * waits or ends, then those with one more switch, at any read or write of shared memory, then those with two.
 */
final class Schedules {
    /** A loop of so many rounds waits for another thread. */
    private static final LincheckSettings SETTINGS = new LincheckSettings(true, 1_000, 10_000_000, 1_000);
    /** On a busy machine the first schedule, in which Lincheck changes all classes, takes longer than it lets one take. */
    private static final int PREPARATIONS_MAX = 5;

    private static final int SCHEDULES_MAX = 10_000_000;

    /** The classes that the scenario uses. */
    private static Set<String> used;
    private static boolean isPreparation;
    private static long count;
    private static long endNanos;
    private static boolean isOver;
    /** The last schedule has. */
    private static boolean hasPassed;

    /** What one thread does. */
    interface Part {
        void run() throws Exception;
    }

    private Schedules() { }

    /** Try schedules until the time is over, all were tried, or one fails with an error. */
    static void tryAll(Part scenario, long seconds) {
        prepare(scenario);
        count = 0;
        isOver = false;
        hasPassed = false;
        try {
            Lincheck.INSTANCE.runConcurrentTestInternal$lincheck(SCHEDULES_MAX, SETTINGS, () -> {
                begin(seconds);
                runOne(scenario);
                pass();
            });
        } catch (LincheckAssertionError e) {
            if (!isOver) throw e;
        }
    }

    /** How many schedules of the last scenario were tried. */
    static long count() {
        return count;
    }

    /** Run parts as threads, and wait for all. Throws the error of the first that has one. */
    static void together(Part... parts) throws Exception {
        Throwable[] errors = new Throwable[parts.length];
        Thread[] threads = new Thread[parts.length];
        for (int each = 0; each < parts.length; each++) {
            int number = each;
            threads[each] = new Thread(() -> {
                try {
                    parts[number].run();
                } catch (Throwable e) {
                    errors[number] = e;
                }
            });
        }
        for (Thread each : threads) each.start();
        for (Thread each : threads) each.join();
        for (Throwable each : errors) if (each != null) throw new AssertionError(each.toString(), each);
    }

    /** Do what no other thread sees in one step: it takes a hundredth of the time. */
    static <T> T atOnce(Callable<T> use) throws Exception {
        return isPreparation ? use.call() : unseen(use);
    }

    /** Do what Lincheck cannot follow, such as making a file. The class of what it returns is changed. */
    static <T> T unseen(Callable<T> use) throws Exception {
        Injections.enterIgnoredSection();
        try {
            T made = use.call();
            LincheckInstrumentation.INSTANCE.ensureClassHierarchyIsTransformed(made.getClass().getName());
            return made;
        } finally {
            Injections.leaveIgnoredSection();
        }
    }

    /**
     * Learn which classes a scenario uses. Lincheck changes a class when it sees its first object or static call; an object that was made
     * unseen before that would wait for its locks without Lincheck.
     */
    private static void prepare(Part scenario) {
        used = null;
        isPreparation = true;
        for (int each = 0; each < PREPARATIONS_MAX && used == null; each++) {
            try {
                Lincheck.INSTANCE.runConcurrentTestInternal$lincheck(1, SETTINGS, () -> {
                    runOne(scenario);
                    keepUsed();
                });
            } catch (LincheckAssertionError e) {
                if (each == PREPARATIONS_MAX - 1 || !e.getMessage().contains("has hung")) throw e;
            }
        }
        isPreparation = false;
    }

    private static void runOne(Part scenario) {
        try {
            scenario.run();
        } catch (Exception e) {
            throw new AssertionError(e);
        }
    }

    private static void keepUsed() {
        Injections.enterIgnoredSection();
        try {
            used = Set.copyOf(LincheckInstrumentation.INSTANCE.getInstrumentedClasses());
        } finally {
            Injections.leaveIgnoredSection();
        }
    }

    /** Begin a schedule, or end the search. Time stands still in what Lincheck sees. */
    private static void begin(long seconds) {
        boolean ends;
        Injections.enterIgnoredSection();
        try {
            Evacuations.begin();
            if (count == 0) {
                used.forEach(LincheckInstrumentation.INSTANCE::ensureClassHierarchyIsTransformed);
                endNanos = System.nanoTime() + seconds * 1_000_000_000L;
            }
            // A schedule that failed is repeated for its report.
            isOver |= hasPassed && System.nanoTime() - endNanos > 0;
            ends = isOver;
            hasPassed = false;
            if (!ends) count++;
        } finally {
            Injections.leaveIgnoredSection();
        }
        if (ends) throw new AssertionError("the time is over");
    }

    private static void pass() {
        Injections.enterIgnoredSection();
        hasPassed = true;
        Injections.leaveIgnoredSection();
    }
}
