package main

import (
	"fmt"
	"io"
	"net/http"
	"net/url"
	"sort"
	"strings"
	"testing"
	"time"
)

// ask sends a request to the S3, with headers as `name: value`, and returns status, body and headers.
func (w *testWorld) ask(method, path, body string, headers ...string) (int, string, http.Header) {
	w.Helper()
	request, err := http.NewRequest(method, w.urls[s3Service]+path, strings.NewReader(body))
	if err != nil {
		w.Fatal(err)
	}
	for _, header := range headers {
		name, value, _ := strings.Cut(header, ": ")
		request.Header.Set(name, value)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		w.Fatal(err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		w.Fatal(err)
	}
	return response.StatusCode, string(text), response.Header
}

func (w *testWorld) expect(name string, status, expected int) {
	w.Helper()
	if status != expected {
		w.Errorf("%s: status %d, not %d", name, status, expected)
	}
}

func TestRangesOfObjects(t *testing.T) {
	w := startWorld(t, options{})
	w.ask("PUT", "/bucket/a%20key", "0123456789", "X-Amz-Meta-Made-By: test", "Content-Type: text/plain")
	for text, expected := range map[string]struct {
		status int
		body   string
	}{
		"bytes=2-4":   {206, "234"},
		"bytes=7-":    {206, "789"},
		"bytes=-2":    {206, "89"},
		"bytes=8-100": {206, "89"},
		"":            {200, "0123456789"},
	} {
		status, body, header := w.ask("GET", "/bucket/a%20key", "", "Range: "+text)
		if status != expected.status || body != expected.body || header.Get("X-Amz-Meta-Made-By") != "test" {
			t.Errorf("%q: status %d, %q, %v", text, status, body, header)
		}
	}
	status, _, _ := w.ask("GET", "/bucket/a%20key", "", "Range: bytes=10-")
	w.expect("a range after the end", status, 416)
	status, _, header := w.ask("HEAD", "/bucket/a%20key", "")
	if status != 200 || header.Get("Content-Length") != "10" || header.Get("Content-Type") != "text/plain" {
		t.Errorf("HEAD: status %d, %v", status, header)
	}
	status, body, _ := w.ask("GET", "/bucket/none", "")
	if status != 404 || !strings.Contains(body, "<Code>NoSuchKey</Code>") {
		t.Errorf("a missing key: status %d, %s", status, body)
	}
}

func TestConditionalWrites(t *testing.T) {
	w := startWorld(t, options{})
	status, _, header := w.ask("PUT", "/bucket/key", "first", "If-None-Match: *")
	w.expect("the first write", status, 200)
	status, _, _ = w.ask("PUT", "/bucket/key", "second", "If-None-Match: *")
	w.expect("a second one", status, 412)
	etag := header.Get("Etag")
	status, _, _ = w.ask("PUT", "/bucket/key", "third", "If-Match: "+etag)
	w.expect("a write over the table object", status, 200)
	status, _, _ = w.ask("PUT", "/bucket/key", "fourth", "If-Match: "+etag)
	w.expect("a write over an older object", status, 412)
	status, _, _ = w.ask("GET", "/bucket/key", "", "If-Match: "+etag)
	w.expect("a read of an older object", status, 412)
	if _, body, _ := w.ask("GET", "/bucket/key", ""); body != "third" {
		t.Errorf("the object is %q", body)
	}
	if counts := w.statistics().Services[s3Service]["ConditionalPutObject"]; counts.Requests != 4 {
		t.Errorf("%d conditional writes", counts.Requests)
	}
}

func TestChunkedBodyAndItsChecksum(t *testing.T) {
	w := startWorld(t, options{})
	body := "5;chunk-signature=0\r\nhello\r\n6\r\n world\r\n0\r\nx-amz-checksum-crc32: DUoRhQ==\r\n\r\n"
	status, _, _ := w.ask("PUT", "/bucket/key", body,
		"Content-Encoding: aws-chunked", "X-Amz-Content-Sha256: STREAMING-UNSIGNED-PAYLOAD-TRAILER", "X-Amz-Decoded-Content-Length: 11")
	w.expect("a chunked write", status, 200)
	_, text, header := w.ask("GET", "/bucket/key", "", "X-Amz-Checksum-Mode: ENABLED")
	if text != "hello world" || header.Get("X-Amz-Checksum-Crc32") != "DUoRhQ==" || header.Get("Content-Encoding") != "" {
		t.Errorf("%q, %v", text, header)
	}
	status, _, _ = w.ask("PUT", "/bucket/broken", "5\r\nhel", "Content-Encoding: aws-chunked")
	w.expect("a chunk that ends early", status, 400)
}

func TestUploadInParts(t *testing.T) {
	w := startWorld(t, options{})
	_, text, _ := w.ask("POST", "/bucket/key?uploads", "")
	_, rest, _ := strings.Cut(text, "<UploadId>")
	id, _, _ := strings.Cut(rest, "</UploadId>")
	w.ask("PUT", "/bucket/key?partNumber=2&uploadId="+id, "world")
	w.ask("PUT", "/bucket/source", "hello hello ")
	status, _, _ := w.ask("PUT", "/bucket/key?partNumber=1&uploadId="+id, "",
		"X-Amz-Copy-Source: /bucket/source", "X-Amz-Copy-Source-Range: bytes=0-5")
	w.expect("a copied part", status, 200)
	status, _, _ = w.ask("GET", "/bucket/key", "")
	w.expect("before the end", status, 404)
	end := "<CompleteMultipartUpload><Part><PartNumber>1</PartNumber></Part><Part><PartNumber>2</PartNumber></Part></CompleteMultipartUpload>"
	status, _, _ = w.ask("POST", "/bucket/key?uploadId="+id, end)
	w.expect("the end", status, 200)
	if _, text, _ := w.ask("GET", "/bucket/key", ""); text != "hello world" {
		t.Errorf("the object is %q", text)
	}
	status, _, _ = w.ask("DELETE", "/bucket/key?uploadId="+id, "")
	w.expect("an abort after the end", status, 404)
}

func TestListing(t *testing.T) {
	w := startWorld(t, options{})
	for _, key := range []string{"a/1", "a/2", "a/b/3", "a/b/4", "a/c", "b"} {
		w.ask("PUT", "/bucket/"+key, key)
	}
	list := func(query string) (string, string) {
		_, text, _ := w.ask("GET", "/bucket?"+query, "")
		var keys []string
		for _, name := range []string{"Contents><Key>", "CommonPrefixes><Prefix>"} {
			for _, part := range strings.Split(text, name)[1:] {
				key, _, _ := strings.Cut(part, "<")
				keys = append(keys, key)
			}
		}
		_, next, _ := strings.Cut(text, "<NextContinuationToken>")
		next, _, _ = strings.Cut(next, "<")
		return strings.Join(keys, " "), next
	}
	for query, expected := range map[string]string{
		"list-type=2":                              "a/1 a/2 a/b/3 a/b/4 a/c b",
		"list-type=2&prefix=a/b":                   "a/b/3 a/b/4",
		"list-type=2&prefix=a/&delimiter=/":        "a/1 a/2 a/c a/b/",
		"list-type=2&delimiter=/":                  "b a/",
		"list-type=2&start-after=a/b/3&max-keys=2": "a/b/4 a/c",
		"marker=a/c":                               "b",
		"list-type=2&prefix=none":                  "",
	} {
		if keys, _ := list(query); keys != expected {
			t.Errorf("%s: %s", query, keys)
		}
	}
	var pages []string
	token := "none"
	for query := "list-type=2&prefix=a/&delimiter=/&max-keys=1"; token != ""; {
		var keys string
		keys, token = list(query)
		pages = append(pages, keys)
		query = "list-type=2&prefix=a/&delimiter=/&max-keys=1&continuation-token=" + strings.ReplaceAll(token, "\U0010ffff", "%F4%8F%BF%BF")
	}
	if joined := strings.Join(pages, " "); joined != "a/1 a/2 a/b/ a/c" {
		t.Errorf("by pages: %s", joined)
	}
}

func TestCopyAndDelete(t *testing.T) {
	w := startWorld(t, options{})
	w.ask("PUT", "/bucket/a+b", "content")
	status, _, _ := w.ask("PUT", "/bucket/copy", "", "X-Amz-Copy-Source: bucket/a%2Bb")
	w.expect("a copy", status, 200)
	w.ask("PUT", "/bucket/other", "")
	w.ask("POST", "/bucket?delete", "<Delete><Object><Key>a+b</Key></Object><Object><Key>other</Key></Object></Delete>")
	_, text, _ := w.ask("GET", "/bucket?list-type=2", "")
	if strings.Count(text, "<Key>") != 1 || !strings.Contains(text, "<Key>copy</Key>") {
		t.Errorf("the rest is %s", text)
	}
	status, _, _ = w.ask("DELETE", "/bucket/copy", "")
	w.expect("a delete", status, 204)
	status, _, _ = w.ask("GET", "/bucket/copy?acl", "")
	w.expect("a deleted object", status, 404)
	status, _, _ = w.ask("POST", "/bucket/copy?restore", "")
	w.expect("an operation that is not implemented", status, 501)
}

// The clock of this test is a number: requests of one instant, and of one second later.
func TestS3SlowsDownAboveItsRates(t *testing.T) {
	s := newS3(published(t).S3["standard"], 0, newLatencies(nil, 1, scaleOf(0)), newStatistics())
	instant := time.Unix(0, 0)
	admitted := func(method, key, query, body string) int {
		values, err := url.ParseQuery(query)
		if err != nil {
			t.Fatal(err)
		}
		count := 0
		for number := 0; number < 10000; number++ {
			request := &s3Request{Request: &http.Request{Method: method}, bucket: "bucket", key: key, query: values, data: []byte(body)}
			if s.admits(request, instant) {
				count++
			}
		}
		return count
	}
	if writes, reads := admitted("PUT", "a/1", "", ""), admitted("GET", "a/2", "", ""); writes != 3500 || reads != 5500 {
		t.Errorf("%d writes and %d reads of one prefix", writes, reads)
	}
	if writes := admitted("PUT", "b/1", "", ""); writes != 3500 {
		t.Errorf("%d writes of another prefix", writes)
	}
	instant = instant.Add(time.Second)
	if writes := admitted("PUT", "a/3", "", ""); writes != 3500 {
		t.Errorf("%d writes in the next second", writes)
	}
	// A listing and a DeleteObjects have no key in their paths.
	const keys = "<Delete><Object><Key>%s/1</Key></Object><Object><Key>a/2</Key></Object></Delete>"
	for prefix, shares := range map[string]struct{ writes, reads int }{"a": {0, 5500}, "c": {3500, 5500}} {
		writes := admitted("POST", "", "delete", fmt.Sprintf(keys, prefix))
		reads := admitted("GET", "", "list-type=2&prefix="+prefix+"/4", "")
		if writes != shares.writes || reads != shares.reads {
			t.Errorf("%d deletes and %d listings below %s", writes, reads, prefix)
		}
	}
}

func TestFilesOfStateAreCountedApart(t *testing.T) {
	w := startWorld(t, options{})
	w.ask("PUT", "/bucket/query/state/0/1/2.changelog", "changes")
	w.ask("GET", "/bucket?list-type=2&prefix=query%2Fstate%2F0%2F", "")
	w.ask("PUT", "/bucket/query/commits/1", "log")
	w.ask("GET", "/bucket/state/0/1/2.changelog", "") // the checkpoint is the whole bucket
	const keys = "<Delete><Object><Key>query/%s/1</Key></Object><Object><Key>query/other</Key></Object></Delete>"
	w.ask("POST", "/bucket?delete", fmt.Sprintf(keys, "state"))
	w.ask("POST", "/bucket?delete", fmt.Sprintf(keys, "statement"))
	services := w.statistics().Services
	for service, operations := range map[string]string{
		s3StateService: "1 DeleteObjects, 1 GetObject, 1 ListObjects, 1 PutObject",
		s3Service:      "1 DeleteObjects, 1 PutObject",
	} {
		var names []string
		for name, counts := range services[service] {
			names = append(names, fmt.Sprintf("%d %s", counts.Requests, name))
		}
		sort.Strings(names)
		if strings.Join(names, ", ") != operations {
			t.Errorf("%s has %v", service, names)
		}
	}
}

func TestSlowDownIsA503(t *testing.T) {
	w := startWorld(t, options{parameters: slowS3(t)})
	w.ask("PUT", "/bucket/key", "first")
	status, text, _ := w.ask("PUT", "/bucket/key", "second")
	if status != 503 || !strings.Contains(text, "<Code>SlowDown</Code>") {
		t.Errorf("status %d, %s", status, text)
	}
	if counts := w.statistics().Services[s3Service]["PutObject"]; counts.ThrottledRequests != 1 {
		t.Errorf("%d throttled requests", counts.ThrottledRequests)
	}
}

// slowS3 writes parameters with 3.6 writes an hour.
func slowS3(t *testing.T) string {
	return changedParameters(t, `"write_rate": { "value": 3500`, `"write_rate": { "value": 0.001`)
}
