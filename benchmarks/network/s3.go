package main

import (
	"encoding/xml"
	"math"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"
)

const (
	s3Service = "s3"
	mebibyte  = 1 << 20
	// What is sent before the next wait, if bytes are waited for.
	pieceBytes     = 256 << 10
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
	s.statistics.record(s3Service, operation, counts)
}

// admits returns whether the rate of the request's prefix allows it.
func (s *s3) admits(request *s3Request, now time.Time) bool {
	depth := int(s.parameters.Prefix.Value)
	segments := strings.SplitN(request.bucket+"/"+request.key, "/", depth+2)
	prefix := strings.Join(segments[:len(segments)-1], "/")
	s.mutex.Lock()
	defer s.mutex.Unlock()
	rates := s.prefixes[prefix]
	if rates == nil {
		rates = &[kinds]bucket{}
		for k, rate := range [kinds]float64{s.parameters.WriteRate.Value, s.parameters.ReadRate.Value} {
			rates[k] = newBucket(rate, 1, rate, now)
		}
		s.prefixes[prefix] = rates
	}
	k := write
	if request.Method == http.MethodGet || request.Method == http.MethodHead {
		k = read
	}
	if !rates[k].hasSome(now) {
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
		sleep(milliseconds(seconds*1000*s.latencies.scale) - time.Since(begin))
		written, err := w.Write(piece)
		if sent += written; err != nil {
			break // the client has closed the connection, as readers of a part of an object do
		}
	}
	return sent
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

func (s *s3) acknowledge(*s3Request) s3Answer {
	return s3Answer{status: http.StatusOK, header: http.Header{"X-Amz-Bucket-Region": {"us-east-1"}}}
}

func (s *s3) refuse(r *s3Request) s3Answer {
	return failure(http.StatusNotImplemented, "NotImplemented", r.Method+" "+r.URL.String()+" is not implemented.")
}

func (s *s3) get(r *s3Request) s3Answer {
	object := s.objects.get(r.bucket, r.key)
	if object == nil {
		return failure(http.StatusNotFound, "NoSuchKey", "The specified key does not exist.")
	}
	if condition := r.condition(); !condition.isMet(object) {
		if condition.ifNoneMatch != "" {
			return s3Answer{status: http.StatusNotModified}
		}
		return preconditionFailed()
	}
	header := http.Header{}
	for name, values := range object.header {
		if !strings.HasPrefix(name, checksumPrefix) || r.Header.Get("X-Amz-Checksum-Mode") != "" && r.Header.Get("Range") == "" {
			header[name] = values
		}
	}
	header.Set("Accept-Ranges", "bytes")
	header.Set("Etag", object.etag)
	header.Set("Last-Modified", object.modified.Format(http.TimeFormat))
	data, status := object.data, http.StatusOK
	if r.Header.Get("Range") != "" {
		begin, end, isValid := parseRange(r.Header.Get("Range"), len(data))
		if !isValid {
			return failure(http.StatusRequestedRangeNotSatisfiable, "InvalidRange", "The requested range is not satisfiable.")
		}
		header.Set("Content-Range", "bytes "+strconv.Itoa(begin)+"-"+strconv.Itoa(end-1)+"/"+strconv.Itoa(len(data)))
		data, status = data[begin:end], http.StatusPartialContent
	}
	header.Set("Content-Length", strconv.Itoa(len(data)))
	return s3Answer{status: status, header: header, data: data}
}

// parseRange returns begin and end of `bytes=first-last`, `bytes=first-` or `bytes=-length`.
func parseRange(text string, length int) (begin, end int, isValid bool) {
	first, last, _ := strings.Cut(strings.TrimPrefix(text, "bytes="), "-")
	begin, firstError := strconv.Atoi(first)
	end, lastError := strconv.Atoi(last)
	switch {
	case firstError == nil && lastError == nil:
		end++
	case firstError == nil && last == "":
		end = length
	case first == "" && lastError == nil:
		begin, end = length-end, length
	default:
		return 0, 0, false
	}
	if begin < 0 {
		begin = 0
	}
	if end > length {
		end = length
	}
	return begin, end, begin < end
}

// storedHeader returns the headers of a write that GET and HEAD return: metadata, and checksums, in the trailers, too.
func (r *s3Request) storedHeader() http.Header {
	stored := http.Header{"Content-Type": {"binary/octet-stream"}}
	for name, values := range r.Header {
		switch {
		case strings.HasPrefix(name, metadataPrefix), name == "Content-Type", name == "Cache-Control",
			name == "Content-Disposition", name == "Content-Language":
			stored[name] = values
		case name == "Content-Encoding":
			encoding := strings.Trim(strings.Replace(values[0], "aws-chunked", "", 1), ", ")
			if encoding != "" {
				stored.Set(name, encoding)
			}
		}
	}
	for name, values := range r.checksums() {
		stored[name] = values
	}
	return stored
}

func (r *s3Request) checksums() http.Header {
	checksums := http.Header{}
	for _, header := range [...]http.Header{r.Header, r.trailers} {
		for name, values := range header {
			if strings.HasPrefix(name, checksumPrefix) && name != checksumPrefix+"Algorithm" {
				checksums[name] = values
			}
		}
	}
	return checksums
}

func (s *s3) put(r *s3Request) s3Answer {
	object := s.objects.put(r.bucket, r.key, r.data, r.storedHeader(), r.condition())
	if object == nil {
		return preconditionFailed()
	}
	header := r.checksums()
	header.Set("Etag", object.etag)
	return s3Answer{status: http.StatusOK, header: header}
}

// copySource returns the object that is copied, or nil and why not.
func (s *s3) copySource(r *s3Request) (*object, s3Answer) {
	path, err := url.PathUnescape(strings.TrimPrefix(r.Header.Get("X-Amz-Copy-Source"), "/"))
	if err != nil {
		return nil, failure(http.StatusBadRequest, "InvalidArgument", err.Error())
	}
	bucket, key, _ := strings.Cut(path, "/")
	source := s.objects.get(bucket, key)
	if source == nil {
		return nil, failure(http.StatusNotFound, "NoSuchKey", "The specified key does not exist.")
	}
	const prefix = "X-Amz-Copy-Source-If-"
	if !(condition{r.Header.Get(prefix + "Match"), r.Header.Get(prefix + "None-Match")}).isMet(source) {
		return nil, preconditionFailed()
	}
	return source, s3Answer{}
}

func (s *s3) copy(r *s3Request) s3Answer {
	source, refusal := s.copySource(r)
	if source == nil {
		return refusal
	}
	header := source.header
	if r.Header.Get("X-Amz-Metadata-Directive") == "REPLACE" {
		header = r.storedHeader()
	}
	object := s.objects.put(r.bucket, r.key, source.data, header, condition{})
	return document(copyResult{XMLName: named("CopyObjectResult"), ETag: object.etag, LastModified: timeText(object.modified)})
}

func (s *s3) delete(r *s3Request) s3Answer {
	s.objects.delete(r.bucket, r.key)
	return s3Answer{status: http.StatusNoContent}
}

func (s *s3) deleteSeveral(r *s3Request) s3Answer {
	var request struct {
		Object []struct{ Key string }
		Quiet  bool
	}
	if err := xml.Unmarshal(r.data, &request); err != nil {
		return failure(http.StatusBadRequest, "MalformedXML", err.Error())
	}
	var result deleteResult
	for _, object := range request.Object {
		s.objects.delete(r.bucket, object.Key)
		if !request.Quiet {
			result.Deleted = append(result.Deleted, deletedKey{object.Key})
		}
	}
	return document(result)
}

func (s *s3) beginUpload(r *s3Request) s3Answer {
	return document(uploadBegun{Bucket: r.bucket, Key: r.key, UploadID: s.objects.beginUpload(r.storedHeader())})
}

func (s *s3) putPart(r *s3Request) s3Answer {
	part := s.objects.putPart(r.query.Get("uploadId"), r.partNumber(), r.data)
	if part == nil {
		return noSuchUpload()
	}
	header := r.checksums()
	header.Set("Etag", part.etag)
	return s3Answer{status: http.StatusOK, header: header}
}

func (s *s3) copyPart(r *s3Request) s3Answer {
	source, refusal := s.copySource(r)
	if source == nil {
		return refusal
	}
	data := source.data
	if text := r.Header.Get("X-Amz-Copy-Source-Range"); text != "" {
		begin, end, isValid := parseRange(text, len(data))
		if !isValid {
			return failure(http.StatusBadRequest, "InvalidArgument", "The range is not within the source.")
		}
		data = data[begin:end]
	}
	part := s.objects.putPart(r.query.Get("uploadId"), r.partNumber(), data)
	if part == nil {
		return noSuchUpload()
	}
	return document(copyResult{XMLName: named("CopyPartResult"), ETag: part.etag, LastModified: timeText(part.modified)})
}

func (r *s3Request) partNumber() int {
	number, _ := strconv.Atoi(r.query.Get("partNumber"))
	return number
}

func (s *s3) endUpload(r *s3Request) s3Answer {
	var request struct{ Part []struct{ PartNumber int } }
	if err := xml.Unmarshal(r.data, &request); err != nil {
		return failure(http.StatusBadRequest, "MalformedXML", err.Error())
	}
	if !r.condition().isMet(s.objects.get(r.bucket, r.key)) {
		return preconditionFailed()
	}
	var numbers []int
	for _, part := range request.Part {
		numbers = append(numbers, part.PartNumber)
	}
	data, header, isThere := s.objects.endUpload(r.query.Get("uploadId"), numbers)
	if !isThere {
		return noSuchUpload()
	}
	object := s.objects.put(r.bucket, r.key, data, header, r.condition())
	if object == nil {
		return preconditionFailed()
	}
	return document(uploadEnded{Bucket: r.bucket, Key: r.key, ETag: object.etag})
}

func (s *s3) abortUpload(r *s3Request) s3Answer {
	if _, _, isThere := s.objects.endUpload(r.query.Get("uploadId"), nil); !isThere {
		return noSuchUpload()
	}
	return s3Answer{status: http.StatusNoContent}
}

// list answers both versions of ListObjects: the first has a marker, the second a token.
func (s *s3) list(r *s3Request) s3Answer {
	query := r.query
	most := 1000
	if number, err := strconv.Atoi(query.Get("max-keys")); err == nil && number < most {
		most = number
	}
	after := query.Get("marker")
	if after == "" {
		after = query.Get("continuation-token")
	}
	if after == "" {
		after = query.Get("start-after")
	}
	page := s.objects.list(r.bucket, query.Get("prefix"), query.Get("delimiter"), after, most)
	result := listResult{
		Name: r.bucket, Prefix: query.Get("prefix"), Delimiter: query.Get("delimiter"), MaxKeys: most,
		KeyCount: len(page.keys) + len(page.prefixes), IsTruncated: page.next != "",
	}
	if query.Get("list-type") == "2" {
		result.NextContinuationToken = page.next
	} else {
		result.NextMarker = page.next
	}
	for number, key := range page.keys {
		object := page.objects[number]
		result.Contents = append(result.Contents, listedObject{
			Key: key, LastModified: timeText(object.modified), ETag: object.etag, Size: len(object.data), StorageClass: "STANDARD",
		})
	}
	for _, prefix := range page.prefixes {
		result.CommonPrefixes = append(result.CommonPrefixes, listedPrefix{prefix})
	}
	return document(result)
}

func (s *s3) location(*s3Request) s3Answer {
	return document(struct {
		XMLName xml.Name `xml:"LocationConstraint"`
	}{})
}

func (s *s3) listUploads(r *s3Request) s3Answer {
	return document(struct {
		XMLName xml.Name `xml:"ListMultipartUploadsResult"`
		Bucket  string
	}{Bucket: r.bucket})
}

func newS3(parameters s3Parameters, connection float64, latencies *latencies, statistics *statistics) *s3 {
	return &s3{
		parameters: parameters, connection: connection, latencies: latencies, statistics: statistics,
		objects: newObjects(), prefixes: map[string]*[kinds]bucket{},
	}
}
