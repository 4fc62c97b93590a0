package main

import (
	"bytes"
	"encoding/xml"
	"net/http"
	"time"
)

// The documents of S3, in XML.

type failureDocument struct {
	XMLName xml.Name `xml:"Error"`
	Code    string
	Message string
}

type listResult struct {
	XMLName               xml.Name `xml:"http://s3.amazonaws.com/doc/2006-03-01/ ListBucketResult"`
	Name                  string
	Prefix                string
	Delimiter             string `xml:",omitempty"`
	MaxKeys               int
	KeyCount              int
	IsTruncated           bool
	NextContinuationToken string `xml:",omitempty"`
	NextMarker            string `xml:",omitempty"`
	Contents              []listedObject
	CommonPrefixes        []listedPrefix
}

type listedObject struct {
	Key          string
	LastModified string
	ETag         string
	Size         int
	StorageClass string
}

type listedPrefix struct {
	Prefix string
}

type copyResult struct {
	XMLName      xml.Name
	ETag         string
	LastModified string
}

type deleteResult struct {
	XMLName xml.Name `xml:"DeleteResult"`
	Deleted []deletedKey
}

type deletedKey struct {
	Key string
}

type uploadBegun struct {
	XMLName  xml.Name `xml:"InitiateMultipartUploadResult"`
	Bucket   string
	Key      string
	UploadID string `xml:"UploadId"`
}

type uploadEnded struct {
	XMLName xml.Name `xml:"CompleteMultipartUploadResult"`
	Bucket  string
	Key     string
	ETag    string
}

// firstKey returns the first key in the document of a DeleteObjects, or "" if there is none.
func firstKey(text []byte) string {
	decoder := xml.NewDecoder(bytes.NewReader(text))
	for {
		token, err := decoder.Token()
		if err != nil {
			return "" // the end, or broken text, which the operation refuses
		}
		if element, ok := token.(xml.StartElement); ok && element.Name.Local == "Key" {
			var key string
			if decoder.DecodeElement(&key, &element) != nil {
				return ""
			}
			return key
		}
	}
}

func document(content any) s3Answer {
	return s3Answer{status: http.StatusOK, document: content}
}

func failure(status int, code, message string) s3Answer {
	return s3Answer{status: status, document: failureDocument{Code: code, Message: message}}
}

func preconditionFailed() s3Answer {
	return failure(http.StatusPreconditionFailed, "PreconditionFailed",
		"At least one of the pre-conditions you specified did not hold.")
}

func noSuchUpload() s3Answer {
	return failure(http.StatusNotFound, "NoSuchUpload", "The specified upload, or a part of it, does not exist.")
}

func copied(name string, object *object) s3Answer {
	return document(copyResult{
		XMLName: xml.Name{Local: name}, ETag: object.etag, LastModified: timeText(object.modified),
	})
}

func timeText(instant time.Time) string { return instant.Format("2006-01-02T15:04:05.000Z") }
