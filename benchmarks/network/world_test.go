package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"sort"
	"strings"
	"sync"
	"testing"
	"time"
)

// A testWorld is a world on ports of its own, before an engine that is a fake.
type testWorld struct {
	*testing.T
	urls   map[string]string
	engine *fakeEngine
}

func startWorld(t *testing.T, o options) *testWorld {
	t.Helper()
	fake := startEngine(t)
	o.engine = fake.address
	if o.s3 == "" {
		o.s3 = "standard"
	}
	servers, err := newWorld(o)
	if err != nil {
		t.Fatal(err)
	}
	w := &testWorld{t, map[string]string{}, fake}
	for name, serve := range servers {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { listener.Close() })
		w.urls[name] = "http://" + listener.Addr().String()
		go serve(listener)
	}
	return w
}

// A fakeEngine has one table, `delta`, and answers as the test says.
type fakeEngine struct {
	address  string
	mutex    sync.Mutex
	requests []string // their bodies, without DescribeTable
	answer   string
}

func startEngine(t *testing.T) *fakeEngine {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	fake := &fakeEngine{address: listener.Addr().String(), answer: "{}"}
	go http.Serve(listener, fake)
	return fake
}

func (f *fakeEngine) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	f.mutex.Lock()
	defer f.mutex.Unlock()
	w.Header().Set("X-Amz-Crc32", "1")
	if strings.HasSuffix(r.Header.Get(targetHeader), ".DescribeTable") {
		io.WriteString(w, `{"Table": {"TableArn": "arn:delta", "KeySchema": [
			{"AttributeName": "store_shard", "KeyType": "HASH"}, {"AttributeName": "part", "KeyType": "RANGE"}]}}`)
		return
	}
	f.requests = append(f.requests, string(body))
	io.WriteString(w, f.answer)
}

// call sends a request to the DynamoDB, and returns status and answer.
func (w *testWorld) call(operation, body string) (int, map[string]any) {
	w.Helper()
	request, _ := http.NewRequest(http.MethodPost, w.urls[dynamoDBService], strings.NewReader(body))
	request.Header.Set(targetHeader, "DynamoDB_20120810."+operation)
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		w.Fatal(err)
	}
	defer response.Body.Close()
	var answer map[string]any
	if err := json.NewDecoder(response.Body).Decode(&answer); err != nil {
		w.Fatal(err)
	}
	return response.StatusCode, answer
}

type reportedStatistics struct {
	Seconds          float64                      `json:"seconds"`
	ProcessorSeconds float64                      `json:"processor_seconds"`
	Services         map[string]map[string]counts `json:"services"`
	Tables           map[string]map[string]any    `json:"tables"`
}

func (w *testWorld) statistics() reportedStatistics {
	w.Helper()
	response, err := http.Get(w.urls["control"] + "/statistics")
	if err != nil {
		w.Fatal(err)
	}
	defer response.Body.Close()
	var reported reportedStatistics
	if err := json.NewDecoder(response.Body).Decode(&reported); err != nil {
		w.Fatal(err)
	}
	return reported
}

func TestAnswersAreAsLateAsDrawn(t *testing.T) {
	w := startWorld(t, options{seed: 1, scale: 1})
	const clients, requests = 4, 30
	var mutex sync.Mutex
	var waits []float64
	var group sync.WaitGroup
	for client := 0; client < clients; client++ {
		group.Add(1)
		go func() {
			defer group.Done()
			connection := &http.Client{Transport: &http.Transport{}}
			for number := 0; number < requests; number++ {
				request, _ := http.NewRequest(http.MethodPost, w.urls[dynamoDBService], strings.NewReader(put("s", 1, "x")))
				request.Header.Set(targetHeader, "DynamoDB_20120810.PutItem")
				begin := time.Now()
				response, err := connection.Do(request)
				if err != nil {
					t.Error(err)
					return
				}
				io.Copy(io.Discard, response.Body)
				response.Body.Close()
				mutex.Lock()
				waits = append(waits, inMilliseconds(time.Since(begin)))
				mutex.Unlock()
			}
		}()
	}
	group.Wait()
	sort.Float64s(waits)
	counts := w.statistics().Services[dynamoDBService]["PutItem"]
	// On a busy machine they are later.
	if median := waits[len(waits)/2]; median < 7 {
		t.Errorf("the median is %.1f ms, where the source has 7.55", median)
	}
	if counts.Requests != clients*requests || counts.NewConnections != clients {
		t.Errorf("%d requests on %d connections", counts.Requests, counts.NewConnections)
	}
	if longest := waits[len(waits)-clients]; longest < 28 {
		t.Errorf("the first request of a connection took %.1f ms, less than the floor and 23 ms", longest)
	}
}

func TestStatisticsHaveTheProcessorTime(t *testing.T) {
	w := startWorld(t, options{})
	for number := 0; number < 50; number++ {
		w.call("PutItem", put("s", number, strings.Repeat("x", 100)))
	}
	reported := w.statistics()
	counts := reported.Services[dynamoDBService]["PutItem"]
	if counts.Requests != 50 || counts.BytesUp < 5000 || counts.BytesDown != 100 || counts.UnitsWritten != 50 {
		t.Errorf("the counts are %+v", counts)
	}
	if reported.ProcessorSeconds <= 0 || reported.Seconds <= 0 {
		t.Errorf("%v s of the processor in %v s", reported.ProcessorSeconds, reported.Seconds)
	}
	if response, err := http.Post(w.urls["control"]+"/reset", "", nil); err != nil || response.StatusCode != http.StatusOK {
		t.Fatal(err)
	}
	if rest := w.statistics(); len(rest.Services[dynamoDBService]) != 0 || rest.ProcessorSeconds >= reported.ProcessorSeconds {
		t.Errorf("after the reset: %+v", rest)
	}
}

func TestScaleChangesInARun(t *testing.T) {
	w := startWorld(t, options{seed: 1, scale: 1000})
	post := func(query string) int {
		response, err := http.Post(w.urls["control"]+"/scale?"+query, "", nil)
		if err != nil {
			t.Fatal(err)
		}
		response.Body.Close()
		return response.StatusCode
	}
	for _, query := range [...]string{"", "factor=", "factor=-1", "factor=NaN", "factor=fast"} {
		if status := post(query); status != http.StatusBadRequest {
			t.Errorf("%q has the status %d", query, status)
		}
	}
	if status := post("factor=0"); status != http.StatusOK {
		t.Fatalf("factor=0 has the status %d", status)
	}
	begin := time.Now()
	w.call("PutItem", put("s", 1, "x"))
	if waited := time.Since(begin); waited > 4*time.Second {
		t.Errorf("a request took %s, as if its latency still had the factor 1000", waited)
	}
}

func put(store string, number int, data string) string {
	return fmt.Sprintf(`{"TableName": "delta", "Item": %s}`, itemText(store, number, data))
}

func itemText(store string, number int, data string) string {
	return fmt.Sprintf(`{"store_shard": {"S": "%s#0"}, "part": {"S": "%06d"}, "data": {"S": "%s"}}`, store, number, data)
}

// changedParameters writes the published parameters with other texts, given in pairs of old and new, into a file.
func changedParameters(t *testing.T, pairs ...string) string {
	t.Helper()
	for number := 0; number < len(pairs); number += 2 {
		if !bytes.Contains(publishedParameters, []byte(pairs[number])) {
			t.Fatalf("the parameters have no %s", pairs[number])
		}
	}
	file := t.TempDir() + "/parameters.json"
	text := strings.NewReplacer(pairs...).Replace(string(publishedParameters))
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// compact returns JSON without white space, to compare it.
func compact(t *testing.T, value any) string {
	t.Helper()
	var text bytes.Buffer
	if source, isText := value.(string); isText {
		if err := json.Compact(&text, []byte(source)); err != nil {
			t.Fatal(err)
		}
		return text.String()
	}
	encoded, err := json.Marshal(value)
	if err != nil {
		t.Fatal(err)
	}
	return string(encoded)
}
