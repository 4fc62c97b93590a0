package main

import (
	"fmt"
	"testing"
	"time"
)

// A load offers writes of ten units to a table, in virtual time.
type load struct {
	table   *tableCapacity
	instant time.Time
	count   int
}

const unitsOfWrite = 10

// run offers units for some seconds. It returns the admitted units a second, and the limit of the last refusal.
func (l *load) run(seconds, unitsEachSecond int, key func(number int) position) (float64, limit) {
	units, refusal := 0, none
	writes := unitsEachSecond / unitsOfWrite
	for second := 0; second < seconds; second++ {
		for number := 0; number < writes; number++ {
			l.instant = l.instant.Add(time.Second / time.Duration(writes))
			l.count++
			if limit := l.table.take(write, key(l.count), unitsOfWrite, l.instant); limit != none {
				refusal = limit
			} else {
				units += unitsOfWrite
			}
		}
	}
	return float64(units) / float64(seconds), refusal
}

func newLoad(t *testing.T, partitions int, isNew bool) *load {
	instant := time.Unix(0, 0)
	return &load{table: newTableCapacity(published(t).DynamoDB, "arn", partitions, isNew, instant), instant: instant}
}

// One partition key, whose sort key rises with each write, as the parts of a store do.
func rising(number int) position { return position{hash: 1 << 60, sort: fmt.Sprintf("%09d", number)} }

// One partition key, whose sort keys come in no order.
func scattered(number int) position {
	return position{hash: 1 << 60, sort: string(positionKey(number))}
}

func manyKeys(number int) position { return positionOf(positionKey(number), nil) }

func positionKey(number int) []byte { return []byte(fmt.Sprintf("%09d", number*7919%1000003)) }

func within(t *testing.T, name string, value, low, high float64) {
	t.Helper()
	if value < low || value > high {
		t.Errorf("%s: %.0f, not %.0f to %.0f", name, value, low, high)
	}
}

func TestPartitionThrottlesAfterItsBurst(t *testing.T) {
	l := newLoad(t, 1, false)
	// Above its rate of 1,000 it takes 300,000 units more, which it had saved.
	rate, _ := l.run(100, 4000, rising)
	within(t, "with burst", rate, 4000, 4000)
	_, limit := l.run(1, 4000, rising)
	if limit != keyRange {
		t.Errorf("the limit after the burst is %q", limit)
	}
	rate, _ = l.run(100, 4000, rising)
	within(t, "after the burst", rate, 990, 1020)
}

func TestBurstIsSavedAgain(t *testing.T) {
	for _, partitions := range [...]int{1, 4} {
		l := newLoad(t, partitions, true)
		offered := 3000 * partitions
		rate, _ := l.run(10, offered, manyKeys)
		within(t, "a new table", rate, float64(1000*partitions), float64(1200*partitions))
		l.instant = l.instant.Add(60 * time.Second)
		rate, _ = l.run(20, offered, manyKeys)
		within(t, "after a minute without requests", rate, float64(offered), float64(offered))
	}
}

func TestHotPartitionSplits(t *testing.T) {
	for name, keys := range map[string]func(int) position{"many keys": manyKeys, "one key": scattered} {
		l := newLoad(t, 1, true)
		rate, _ := l.run(240, 2000, keys)
		within(t, name+": at first", rate, 1000, 1020)
		l.run(120, 2000, keys)
		if partitions := len(l.table.partitions); partitions != 2 {
			t.Errorf("%s: %d partitions after six minutes", name, partitions)
		}
		rate, _ = l.run(60, 2000, keys)
		within(t, name+": after the split", rate, 1700, 2000)
	}
}

func TestRisingSortKeyNeverSplits(t *testing.T) {
	l := newLoad(t, 1, true)
	rate, _ := l.run(20*60, 2000, rising)
	within(t, "for 20 minutes", rate, 1000, 1010)
	if l.table.splits != 0 {
		t.Errorf("%d splits along a rising sort key", l.table.splits)
	}
}

func TestColdPartitionDoesNotSplit(t *testing.T) {
	l := newLoad(t, 1, true)
	if l.run(20*60, 500, manyKeys); l.table.splits != 0 {
		t.Errorf("%d splits at half of the rate", l.table.splits)
	}
}

func TestNewTableDoubles(t *testing.T) {
	l := newLoad(t, 0, true)
	rate, limit := l.run(29*60, 5000, manyKeys)
	within(t, "a new table", rate, 3900, 4010)
	if limit != keyRange {
		t.Errorf("the limit of a new table is %q", limit)
	}
	l.run(2*60, 5000, manyKeys)
	l.run(4*60, 9000, manyKeys) // which takes what the two minutes saved
	rate, _ = l.run(60, 9000, manyKeys)
	within(t, "after half an hour", rate, 7900, 8400)
}

func TestTableHasTheQuotaOfItsAccount(t *testing.T) {
	l := newLoad(t, 0, false)
	rate, limit := l.run(3, 60000, manyKeys)
	within(t, "an old table", rate, 40000, 54000)
	if limit != account {
		t.Errorf("the limit of an old table is %q", limit)
	}
}

func TestTablesHavePartitionsForTheirLimits(t *testing.T) {
	for _, example := range []struct {
		given    int
		isNew    bool
		expected int
	}{{0, true, 4}, {0, false, 40}, {2, true, 2}, {2, false, 2}} {
		if count := len(newLoad(t, example.given, example.isNew).table.partitions); count != example.expected {
			t.Errorf("%d partitions of %+v", count, example)
		}
	}
}

func TestReadsHaveLimitsOfTheirOwn(t *testing.T) {
	l := newLoad(t, 1, true)
	key := rising(0)
	l.table.settle(write, key, 10000, l.instant)
	if limit := l.table.take(write, key, 1, l.instant); limit != keyRange {
		t.Errorf("a write after 10,000 units reaches %q", limit)
	}
	if limit := l.table.take(read, key, 3000, l.instant); limit != none {
		t.Errorf("a read beside throttled writes reaches %q", limit)
	}
	// A read that turns out large is paid afterwards: 9,000 units take three seconds.
	l.table.settle(read, key, 9000, l.instant)
	for _, expected := range []struct {
		seconds time.Duration
		limit   limit
	}{{2, keyRange}, {4, none}} {
		if limit := l.table.take(read, key, 1, l.instant.Add(expected.seconds*time.Second)); limit != expected.limit {
			t.Errorf("%d s after a large read: %q", expected.seconds, limit)
		}
	}
}
