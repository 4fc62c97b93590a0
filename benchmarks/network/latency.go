package main

import (
	"hash/fnv"
	"math"
	"math/rand"
	"sync"
	"sync/atomic"
	"time"
)

// anyOperation is the name of the distribution of operations that have none of their own.
const anyOperation = "*"

// Latencies draw the latency of each operation from its distribution. Each operation has a random sequence of its own,
// so its draws repeat with the seed, whatever runs beside it.
type latencies struct {
	byOperation map[string]*latency
	scale       *scale
}

// A scale is a factor on all latencies, which may change while requests are under way.
type scale struct{ bits atomic.Uint64 }

func scaleOf(factor float64) *scale {
	s := &scale{}
	s.set(factor)
	return s
}

func (s *scale) set(factor float64) { s.bits.Store(math.Float64bits(factor)) }

func (s *scale) factor() float64 { return math.Float64frombits(s.bits.Load()) }

type latency struct {
	distribution distribution
	mutex        sync.Mutex
	random       *rand.Rand
}

func newLatencies(distributions []distribution, seed int64, scale *scale) *latencies {
	byOperation := map[string]*latency{}
	for _, distribution := range distributions {
		for _, operation := range distribution.Operations {
			digest := fnv.New32a()
			digest.Write([]byte(operation))
			source := rand.NewSource(seed + int64(digest.Sum32()))
			byOperation[operation] = &latency{distribution: distribution, random: rand.New(source)}
		}
	}
	return &latencies{byOperation: byOperation, scale: scale}
}

// draw returns a latency of an operation, with `extra` milliseconds that depend on the request.
func (l *latencies) draw(operation string, extra float64) time.Duration {
	latency := l.byOperation[operation]
	if latency == nil {
		latency = l.byOperation[anyOperation]
	}
	return milliseconds((latency.drawMs() + extra) * l.scale.factor())
}

func (l *latency) drawMs() float64 {
	l.mutex.Lock()
	normal := l.random.NormFloat64()
	l.mutex.Unlock()
	return math.Max(l.distribution.Floor, l.distribution.Median*math.Exp(l.distribution.Sigma*normal))
}

func milliseconds(ms float64) time.Duration {
	return time.Duration(ms * float64(time.Millisecond))
}

func inMilliseconds(duration time.Duration) float64 {
	return float64(duration) / float64(time.Millisecond)
}
