package main

import (
	"crypto/md5"
	"encoding/binary"
	"sort"
	"time"
)

// Of the keys of a partition, one in noteInterval is noted, and the last noteCount decide where to split.
const (
	noteInterval = 17
	noteCount    = 64
	// The smaller side of a split has at least this part of the noted keys.
	smallerSide = 1.0 / 8
	// Noted sort keys are rising if this part of them is not below the one count.
	risingPart = 0.9
)

// A position is the place of an item: DynamoDB orders items by the hash of the partition key, then by the sort key.
// Sort keys are compared as texts, as dynastate writes them.
type position struct {
	hash      uint64
	partition string // the partition key
	sort      string
}

func positionOf(partitionKey, sortKey []byte) position {
	digest := md5.Sum(partitionKey)
	return position{binary.BigEndian.Uint64(digest[:8]), string(partitionKey), string(sortKey)}
}

func (p position) isBelow(other position) bool {
	return p.hash < other.hash || p.hash == other.hash && p.sort < other.sort
}

// A partition has the items from its lowest position up to the lowest of the next partition.
type partition struct {
	parameters partitionParameters
	lowest     position
	buckets    [kinds]bucket
	minute     minuteMean
	hotMinutes int
	noted      []position // in the order of requests
	requests   int
}

func newPartition(parameters partitionParameters, lowest position, isNew bool, instant time.Time) *partition {
	p := &partition{parameters: parameters, lowest: lowest, minute: minuteMean{begin: instant}}
	for k, rate := range parameters.rates() {
		p.buckets[k] = newBucket(rate, parameters.Burst.Value, isNew, instant)
	}
	return p
}

func (p *partition) note(key position) {
	p.requests++
	if p.requests%noteInterval != 0 {
		return
	}
	if len(p.noted) == noteCount {
		p.noted = append(p.noted[:0], p.noted[1:]...)
	}
	p.noted = append(p.noted, key)
}

func (p *partition) countHeat() {
	means := p.minute.end()
	hot := p.parameters.Hot.Value
	if means[write] >= hot*p.buckets[write].rate || means[read] >= hot*p.buckets[read].rate {
		p.hotMinutes++
	} else {
		p.hotMinutes = 0
	}
}

// split returns where to split a partition that has been hot for long enough, unless no split would help.
func (p *partition) split() (position, bool) {
	if p.hotMinutes < int(p.parameters.SplitAfter.Value) || len(p.noted) < noteCount {
		return position{}, false
	}
	if boundary, ok := middle(p.noted, func(a, b position) bool { return a.hash != b.hash }); ok {
		return position{hash: boundary.hash}, true
	}
	// One partition key has nearly all requests. Along a rising sort key, all of them would go to the upper half.
	requests := ofOneKey(p.noted)
	if isRising(requests) {
		return position{}, false
	}
	return middle(requests, func(a, b position) bool { return a != b })
}

// middle returns the boundary next to the median of positions, between two positions that differ.
func middle(positions []position, differ func(a, b position) bool) (position, bool) {
	ordered := append([]position(nil), positions...)
	sort.Slice(ordered, func(i, j int) bool { return ordered[i].isBelow(ordered[j]) })
	half := len(ordered) / 2
	for distance := 0; float64(half-distance) >= smallerSide*float64(len(ordered)); distance++ {
		for _, i := range [2]int{half - distance, half + distance} {
			if i > 0 && i < len(ordered) && differ(ordered[i-1], ordered[i]) {
				return ordered[i], true
			}
		}
	}
	return position{}, false
}

// ofOneKey returns the positions with the most frequent hash.
func ofOneKey(positions []position) []position {
	byHash := map[uint64][]position{}
	for _, key := range positions {
		byHash[key.hash] = append(byHash[key.hash], key)
	}
	var majority []position
	for _, positions := range byHash {
		if len(positions) > len(majority) {
			majority = positions
		}
	}
	return majority
}

func isRising(positions []position) bool {
	rising := 0
	for i := 1; i < len(positions); i++ {
		if !positions[i].isBelow(positions[i-1]) {
			rising++
		}
	}
	return float64(rising) >= risingPart*float64(len(positions)-1)
}

func (t *tableCapacity) partitionOf(key position) int {
	return sort.Search(len(t.partitions), func(i int) bool { return key.isBelow(t.partitions[i].lowest) }) - 1
}

// splitAt moves the items from a boundary on to a new partition, with half of the units that are left.
func (t *tableCapacity) splitAt(number int, boundary position, instant time.Time) {
	lower := t.partitions[number]
	upper := newPartition(lower.parameters, boundary, true, instant)
	for k := range lower.buckets {
		lower.buckets[k].hasSome(instant)
		lower.buckets[k].units /= 2
		upper.buckets[k].units = lower.buckets[k].units
	}
	lower.hotMinutes, lower.noted = 0, nil
	t.partitions = append(t.partitions[:number+1], append([]*partition{upper}, t.partitions[number+1:]...)...)
	t.splits++
}

// splitAll splits each partition in the middle of its hashes, and returns whether any could be.
func (t *tableCapacity) splitAll(instant time.Time) bool {
	count := len(t.partitions)
	end := ^uint64(0)
	for number := count - 1; number >= 0; number-- {
		begin := t.partitions[number].lowest.hash
		if middle := begin + (end-begin)/2; middle > begin {
			t.splitAt(number, position{hash: middle}, instant)
		}
		end = begin
	}
	return len(t.partitions) > count
}
