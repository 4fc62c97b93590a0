package main

import (
	"encoding/xml"
	"net/http"
	"net/url"
	"strconv"
	"strings"
)

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
	isWhole := r.Header.Get("Range") == "" // no checksum is one of a range
	for name, values := range object.header {
		if isWhole || !strings.HasPrefix(name, checksumPrefix) {
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
	return copied("CopyObjectResult", object)
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
	return copied("CopyPartResult", part)
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
	data, header, ok := s.objects.endUpload(r.query.Get("uploadId"), numbers)
	if !ok {
		return noSuchUpload()
	}
	object := s.objects.put(r.bucket, r.key, data, header, r.condition())
	if object == nil {
		return preconditionFailed()
	}
	return document(uploadEnded{Bucket: r.bucket, Key: r.key, ETag: object.etag})
}

func (s *s3) abortUpload(r *s3Request) s3Answer {
	if _, _, ok := s.objects.endUpload(r.query.Get("uploadId"), nil); !ok {
		return noSuchUpload()
	}
	return s3Answer{status: http.StatusNoContent}
}

// list answers both versions of ListObjects: the first has a marker, the second a token.
func (s *s3) list(r *s3Request) s3Answer {
	query := r.query
	limit := 1000
	if number, err := strconv.Atoi(query.Get("max-keys")); err == nil && number < limit {
		limit = number
	}
	marker := query.Get("marker")
	if marker == "" {
		marker = query.Get("continuation-token")
	}
	if marker == "" {
		marker = query.Get("start-after")
	}
	page := s.objects.list(r.bucket, query.Get("prefix"), query.Get("delimiter"), marker, limit)
	result := listResult{
		Name: r.bucket, Prefix: query.Get("prefix"), Delimiter: query.Get("delimiter"), MaxKeys: limit,
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
			Key: key, LastModified: timeText(object.modified), ETag: object.etag, Size: len(object.data),
			StorageClass: "STANDARD",
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
