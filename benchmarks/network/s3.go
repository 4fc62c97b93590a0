package main

import (
	"context"
	"encoding/xml"
	"math"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

const (
	s3Service = "s3"
	// Requests for files of Spark's own state stores are counted apart.
	s3StateService = "s3_state"
	mebibyte       = 1 << 20
	// What is sent before the next wait, if bytes are waited for.
	pieceBytes     = 256 << 10
	stateFolder    = "/state/" // of a checkpoint
	checksumPrefix = "X-Amz-Checksum-"
	metadataPrefix = "X-Amz-Meta-"
)

// An s3 answers late, from objects in memory, in path style, and without authentication.
type s3 struct {
	parameters s3Parameters
	connection float64 // ms
	latencies  *latencies
	statistics *statistics
	objects    *objects
	mutex      sync.Mutex
	prefixes   map[string]*[kinds]bucket
}

// An s3Request is a request whose body has been read.
type s3Request struct {
	*http.Request
	bucket, key string
	query       url.Values
	data        []byte
	trailers    http.Header
}

// An s3Answer is an answer in the making. Data is an object's content, and any other body is a document.
type s3Answer struct {
	status   int
	header   http.Header
	document any
	data     []byte
}

func newS3(parameters s3Parameters, connection float64, latencies *latencies, statistics *statistics) *s3 {
	return &s3{
		parameters: parameters, connection: connection, latencies: latencies, statistics: statistics,
		objects: newObjects(), prefixes: map[string]*[kinds]bucket{},
	}
}

func (s *s3) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	arrival := time.Now()
	data, trailers, err := readObject(r)
	if err != nil {
		http.Error(w, "the body is not complete: "+err.Error(), http.StatusBadRequest)
		return
	}
	bucket, key, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
	request := &s3Request{Request: r, bucket: bucket, key: key, query: r.URL.Query(), data: data, trailers: trailers}
	operation := request.operation()
	counts := counts{Requests: 1, BytesUp: len(data)}
	extra := s.parameters.Upload.Value * float64(len(data)) / mebibyte
	if isFirstRequest(r) {
		extra += s.connection
		counts.NewConnections = 1
	}
	var a s3Answer
	if s.admits(request, arrival) {
		a = s3Operations[operation](s, request)
	} else {
		a = failure(http.StatusServiceUnavailable, "SlowDown", "Please reduce your request rate.")
		counts.ThrottledRequests, counts.ThrottledItems = 1, 1
	}
	sleep(s.latencies.draw(operation, extra) - time.Since(arrival))
	counts.BytesDown = s.send(w, r, a)
	counts.WaitMs = inMilliseconds(time.Since(arrival))
	s.statistics.record(request.service(), operation, counts)
}

// admits returns whether the rate of the request's prefix allows it.
func (s *s3) admits(request *s3Request, instant time.Time) bool {
	depth := int(s.parameters.Prefix.Value)
	segments := strings.SplitN(request.bucket+"/"+request.place(), "/", depth+2)
	prefix := strings.Join(segments[:len(segments)-1], "/")
	s.mutex.Lock()
	defer s.mutex.Unlock()
	rates := s.prefixes[prefix]
	if rates == nil {
		rates = &[kinds]bucket{}
		for k, rate := range [kinds]float64{s.parameters.WriteRate.Value, s.parameters.ReadRate.Value} {
			rates[k] = newBucket(rate, 1, false, instant)
		}
		s.prefixes[prefix] = rates
	}
	k := write
	if request.Method == http.MethodGet || request.Method == http.MethodHead {
		k = read
	}
	if !rates[k].hasSome(instant) {
		return false
	}
	rates[k].take(1)
	return true
}

// send writes an answer, and an object's content as fast as S3 sends it. It returns the number of bytes.
func (s *s3) send(w http.ResponseWriter, r *http.Request, a s3Answer) int {
	header := w.Header()
	for name, values := range a.header {
		if strings.HasPrefix(name, metadataPrefix) {
			name = strings.ToLower(name) // clients show the names of metadata as they are here
		}
		header[name] = values
	}
	header.Set("X-Amz-Request-Id", "world")
	body := a.data
	if a.document != nil {
		text, err := xml.Marshal(a.document)
		if err != nil {
			panic(err) // of structures of our own
		}
		header.Set("Content-Type", "application/xml")
		body = append([]byte(xml.Header), text...)
	}
	if header.Get("Content-Length") == "" && a.status != http.StatusNoContent {
		header.Set("Content-Length", strconv.Itoa(len(body)))
	}
	w.WriteHeader(a.status)
	if r.Method == http.MethodHead {
		return 0
	}
	begin, sent := time.Now(), 0
	for sent < len(body) {
		piece := body[sent:int(math.Min(float64(len(body)), float64(sent+pieceBytes)))]
		seconds := float64(sent+len(piece)) / (s.parameters.Download.Value * 1e6)
		sleep(milliseconds(seconds*1000*s.latencies.scale.factor()) - time.Since(begin))
		written, err := w.Write(piece)
		if sent += written; err != nil {
			break // the client has closed the connection, as readers of a part of an object do
		}
	}
	return sent
}

// place returns the key of a request, the prefix of a listing, or the first key of several.
func (r *s3Request) place() string {
	if r.Method == http.MethodPost && r.key == "" {
		return firstKey(r.data)
	}
	return r.key + r.query.Get("prefix")
}

// service returns the service that a request is counted for.
func (r *s3Request) service() string {
	if strings.Contains("/"+r.place(), stateFolder) {
		return s3StateService
	}
	return s3Service
}

// operation names a request as AWS's logs do; a PUT with a condition has a name of its own.
func (r *s3Request) operation() string {
	has := func(name string) bool { return r.query[name] != nil }
	isCopy := r.Header.Get("X-Amz-Copy-Source") != ""
	switch {
	case r.Method == http.MethodHead && r.key == "":
		return "HeadBucket"
	case r.Method == http.MethodHead:
		return "HeadObject"
	case r.Method == http.MethodGet && r.key != "":
		return "GetObject"
	case r.Method == http.MethodGet && has("location"):
		return "GetBucketLocation"
	case r.Method == http.MethodGet && has("uploads"):
		return "ListMultipartUploads"
	case r.Method == http.MethodGet:
		return "ListObjects"
	case r.Method == http.MethodPut && r.key == "":
		return "CreateBucket"
	case r.Method == http.MethodPut && has("uploadId") && isCopy:
		return "UploadPartCopy"
	case r.Method == http.MethodPut && has("uploadId"):
		return "UploadPart"
	case r.Method == http.MethodPut && isCopy:
		return "CopyObject"
	case r.Method == http.MethodPut && r.condition() != condition{}:
		return "ConditionalPutObject"
	case r.Method == http.MethodPut:
		return "PutObject"
	case r.Method == http.MethodPost && has("delete"):
		return "DeleteObjects"
	case r.Method == http.MethodPost && has("uploads"):
		return "CreateMultipartUpload"
	case r.Method == http.MethodPost && has("uploadId"):
		return "CompleteMultipartUpload"
	case r.Method == http.MethodDelete && has("uploadId"):
		return "AbortMultipartUpload"
	case r.Method == http.MethodDelete && r.key != "":
		return "DeleteObject"
	}
	return "NotImplemented"
}

func (r *s3Request) condition() condition {
	return condition{r.Header.Get("If-Match"), r.Header.Get("If-None-Match")}
}

var s3Operations = map[string]func(s *s3, r *s3Request) s3Answer{
	"HeadBucket":              (*s3).acknowledge,
	"CreateBucket":            (*s3).acknowledge,
	"GetBucketLocation":       (*s3).location,
	"ListObjects":             (*s3).list,
	"ListMultipartUploads":    (*s3).listUploads,
	"GetObject":               (*s3).get,
	"HeadObject":              (*s3).get,
	"PutObject":               (*s3).put,
	"ConditionalPutObject":    (*s3).put,
	"CopyObject":              (*s3).copy,
	"DeleteObject":            (*s3).delete,
	"DeleteObjects":           (*s3).deleteSeveral,
	"CreateMultipartUpload":   (*s3).beginUpload,
	"UploadPart":              (*s3).putPart,
	"UploadPartCopy":          (*s3).copyPart,
	"CompleteMultipartUpload": (*s3).endUpload,
	"AbortMultipartUpload":    (*s3).abortUpload,
	"NotImplemented":          (*s3).refuse,
}

type connectionKey struct{}

// withConnection notes in the context of a connection that no request has come on it.
func withConnection(ctx context.Context, _ net.Conn) context.Context {
	return context.WithValue(ctx, connectionKey{}, new(atomic.Bool))
}

func isFirstRequest(r *http.Request) bool {
	used, ok := r.Context().Value(connectionKey{}).(*atomic.Bool)
	return ok && !used.Swap(true)
}
