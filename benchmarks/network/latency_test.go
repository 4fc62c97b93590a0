package main

import (
	"math"
	"sort"
	"testing"
)

const draws = 20000

func published(t *testing.T) parameters {
	t.Helper()
	parameters, err := loadParameters("")
	if err != nil {
		t.Fatal(err)
	}
	return parameters
}

func drawnMs(l *latencies, operation string) []float64 {
	drawn := make([]float64, draws)
	for number := range drawn {
		drawn[number] = inMilliseconds(l.draw(operation, 0))
	}
	sort.Float64s(drawn)
	return drawn
}

// The percentiles are published by the sources, and computed from no parameter.
func TestPercentilesAreThoseOfTheSources(t *testing.T) {
	dynamoDB := newLatencies(published(t).DynamoDB.Latencies, 1, scaleOf(1))
	for operation, source := range map[string]struct{ p50, p99 float64 }{
		"PutItem":            {7.55, 16.2},
		"UpdateItem":         {7.55, 16.2},
		"BatchWriteItem":     {10.2, 27.6},
		"TransactWriteItems": {32.1, 97.5},
	} {
		drawn := drawnMs(dynamoDB, operation)
		p50, p99 := drawn[draws/2], drawn[draws*99/100]
		if math.Abs(p50/source.p50-1) > 0.02 || math.Abs(p99/source.p99-1) > 0.05 {
			t.Errorf("%s: p50 %.2f, p99 %.1f ms; the source has %v", operation, p50, p99, source)
		}
	}
}

func TestMediansOfS3AndFloors(t *testing.T) {
	for profile, medians := range map[string]map[string]float64{
		"standard": {"GetObject": 27, "PutObject": 60, "ConditionalPutObject": 61, "DeleteObject": 60},
		"express":  {"GetObject": 2.5, "PutObject": 6.5},
	} {
		latencies := newLatencies(published(t).S3[profile].Latencies, 1, scaleOf(1))
		for operation, median := range medians {
			drawn := drawnMs(latencies, operation)
			if math.Abs(drawn[draws/2]/median-1) > 0.02 {
				t.Errorf("%s, %s: p50 %.2f ms, not %v", profile, operation, drawn[draws/2], median)
			}
		}
		if floor := drawnMs(latencies, "GetObject")[0]; floor != published(t).S3[profile].Latencies[0].Floor {
			t.Errorf("%s: the least is %v ms", profile, floor)
		}
	}
}

func TestDrawsRepeatWithTheSeed(t *testing.T) {
	distributions := published(t).DynamoDB.Latencies
	latencies, repeated, different := newLatencies(distributions, 7, scaleOf(1)), newLatencies(distributions, 7, scaleOf(1)), newLatencies(distributions, 8, scaleOf(1))
	repeated.draw("Query", 0) // beside it, without an effect on it
	for number := 0; number < 100; number++ {
		first := latencies.draw("PutItem", 0)
		if second := repeated.draw("PutItem", 0); first != second {
			t.Fatalf("draw %d: %v and %v", number, first, second)
		}
		different.draw("PutItem", 0)
	}
	if latencies.draw("PutItem", 0) == different.draw("PutItem", 0) {
		t.Error("two seeds have one sequence")
	}
}

func TestNumbersWithoutSourceAreRefused(t *testing.T) {
	for _, text := range []string{
		`{"connection": {"value": 1, "unit": "ms"}}`,
		`{"s3": {"standard": {"latencies": [{"operations": ["*"], "median": 1, "source": "x"}]}}}`,
		`{"connexion": {"value": 1, "unit": "ms", "source": "x"}}`,
	} {
		if _, err := parseParameters([]byte(text)); err == nil {
			t.Errorf("accepted: %s", text)
		}
	}
}
