package main

import (
	"math"
	"sync"
	"time"
)

// A kind of unit. Each has limits of its own.
type kind int

const (
	write kind = iota
	read
	kinds
)

func (k kind) String() string {
	return [kinds]string{"Write", "Read"}[k]
}

// A limit that throttled a request, by the last part of its name in ThrottlingReasons; none if it was admitted.
type limit string

const (
	none     limit = ""
	keyRange limit = "KeyRangeThroughputExceeded"
	account  limit = "AccountLimitExceeded"
)

// A bucket holds unused units: `rate` more each second, at most `max`. A request is admitted while any are left, and
// may take more than are left, as DynamoDB knows the units of a read only after it.
type bucket struct {
	rate, max, units float64
	updated          time.Time
}

// newBucket makes a bucket for the units of some seconds: a full one, or a new one, with the units of the first second.
func newBucket(rate, seconds float64, isNew bool, instant time.Time) bucket {
	b := bucket{rate: rate, max: rate * seconds, units: rate, updated: instant}
	if !isNew {
		b.units = b.max
	}
	return b
}

func (b *bucket) hasSome(instant time.Time) bool {
	b.units = math.Min(b.max, b.units+b.rate*instant.Sub(b.updated).Seconds())
	b.updated = instant
	return b.units > 0
}

func (b *bucket) take(units float64) { b.units -= units }

// A tableCapacity has the limits of a table on demand, and its partitions by ranges of keys. Each call gives the time.
type tableCapacity struct {
	parameters dynamoDBParameters
	arn        string
	mutex      sync.Mutex
	quotas     [kinds]bucket
	warm       [kinds]bucket
	partitions []*partition // in the order of their keys
	splits     int
	minute     minuteMean
	peak       [kinds]float64 // of the means of minutes in this window
	window     time.Time
}

// newTableCapacity makes the capacity of a table that has never been used, or of one that was used for long: it has
// reached its quotas, and saved all its burst. If no number of partitions is given, it has as many as its limits need.
func newTableCapacity(
	parameters dynamoDBParameters, arn string, partitions int, isNew bool, instant time.Time,
) *tableCapacity {
	limits := parameters.Table
	t := &tableCapacity{parameters: parameters, arn: arn, minute: minuteMean{begin: instant}, window: instant}
	quotas := [kinds]float64{limits.QuotaWrite.Value, limits.QuotaRead.Value}
	warm := quotas
	if isNew {
		warm = [kinds]float64{limits.NewWrite.Value, limits.NewRead.Value}
	}
	count := 1.0 // of partitions
	for k, rate := range parameters.Partition.rates() {
		t.quotas[k] = newBucket(quotas[k], 1, isNew, instant)
		t.warm[k] = newBucket(warm[k], parameters.Partition.Burst.Value, isNew, instant)
		count = math.Max(count, math.Ceil(warm[k]/rate))
	}
	if partitions == 0 {
		partitions = int(count)
	}
	for number := 0; number < partitions; number++ {
		lowest := position{hash: uint64(float64(number) / float64(partitions) * (1 << 63) * 2)}
		t.partitions = append(t.partitions, newPartition(parameters.Partition, lowest, isNew, instant))
	}
	return t
}

// take admits an item with its units, or returns the limit that throttles it.
func (t *tableCapacity) take(k kind, key position, units float64, instant time.Time) limit {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	t.advance(instant)
	number := t.partitionOf(key)
	p := t.partitions[number]
	p.note(key)
	switch {
	case !t.quotas[k].hasSome(instant):
		return account
	case !t.warm[k].hasSome(instant) || !p.buckets[k].hasSome(instant):
		return keyRange
	}
	t.spend(k, p, units)
	return none
}

// settle takes the units of an admitted request that only its answer has shown.
func (t *tableCapacity) settle(k kind, key position, units float64, instant time.Time) {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	t.advance(instant)
	t.spend(k, t.partitions[t.partitionOf(key)], units)
}

func (t *tableCapacity) spend(k kind, p *partition, units float64) {
	t.quotas[k].take(units)
	t.warm[k].take(units)
	t.minute.units[k] += units
	p.buckets[k].take(units)
	p.minute.units[k] += units
}

// advance does what is due at the end of minutes: splits for heat, and growth at the end of a window.
func (t *tableCapacity) advance(instant time.Time) {
	for number := 0; number < len(t.partitions); number++ {
		p := t.partitions[number]
		for p.minute.isOver(instant) {
			p.countHeat()
			if boundary, ok := p.split(); ok {
				t.splitAt(number, boundary, instant)
			}
		}
	}
	for t.minute.isOver(instant) {
		for k, mean := range t.minute.end() {
			t.peak[k] = math.Max(t.peak[k], mean)
		}
		window := time.Duration(t.parameters.Table.Window.Value * float64(time.Minute))
		if t.minute.begin.Sub(t.window) >= window {
			t.window = t.minute.begin
			t.grow(instant)
		}
	}
}

// grow raises the limits to a multiple of the window's peak, up to the quotas, and adds partitions for them.
func (t *tableCapacity) grow(instant time.Time) {
	rates := t.parameters.Partition.rates()
	for k := range t.warm {
		rate := math.Min(t.quotas[k].rate, t.peak[k]*t.parameters.Table.Growth.Value)
		if rate <= t.warm[k].rate {
			continue
		}
		t.warm[k].rate, t.warm[k].max = rate, rate*t.parameters.Partition.Burst.Value
		for float64(len(t.partitions))*rates[k] < rate && t.splitAll(instant) {
		}
	}
	t.peak = [kinds]float64{}
}

func (t *tableCapacity) describe() map[string]any {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	return map[string]any{
		"partitions":      len(t.partitions),
		"splits":          t.splits,
		"units_s_written": t.warm[write].rate,
		"units_s_read":    t.warm[read].rate,
	}
}

// A minuteMean is the units of a minute that has begun.
type minuteMean struct {
	begin time.Time
	units [kinds]float64
}

func (m *minuteMean) isOver(instant time.Time) bool { return instant.Sub(m.begin) >= time.Minute }

// end begins the next minute, and returns the units a second of this one.
func (m *minuteMean) end() [kinds]float64 {
	var means [kinds]float64
	for k, units := range m.units {
		means[k] = units / 60
	}
	*m = minuteMean{begin: m.begin.Add(time.Minute)}
	return means
}
