package main

import (
	"bytes"
	"fmt"
	"net/http"
	"sort"
	"strings"
	"sync"
	"time"
)

// An object is never changed: a write replaces it.
type object struct {
	data     []byte
	etag     string
	header   http.Header // of its writer, as GET and HEAD return it
	modified time.Time
}

// Objects of an S3, in memory. Every bucket exists. Safe for parallel requests.
type objects struct {
	mutex   sync.RWMutex
	buckets map[string]*objectBucket
	uploads map[string]*upload
	writes  int
}

type objectBucket struct {
	keys    []string // in order
	objects map[string]*object
}

// An upload has the parts of an object that is written in several requests.
type upload struct {
	header http.Header
	parts  map[int]*object
}

func newObjects() *objects {
	return &objects{buckets: map[string]*objectBucket{}, uploads: map[string]*upload{}}
}

// A condition of a write or a read, as its headers have it; empty texts are no condition.
type condition struct {
	ifMatch, ifNoneMatch string
}

func (c condition) isMet(existing *object) bool {
	if existing == nil {
		return c.ifMatch == ""
	}
	return (c.ifMatch == "" || c.ifMatch == "*" || c.ifMatch == existing.etag) &&
		(c.ifNoneMatch == "" || c.ifNoneMatch != "*" && c.ifNoneMatch != existing.etag)
}

func (o *objects) get(bucket, key string) *object {
	o.mutex.RLock()
	defer o.mutex.RUnlock()
	if b := o.buckets[bucket]; b != nil {
		return b.objects[key]
	}
	return nil
}

// put writes an object, or returns nil if the condition is not met.
func (o *objects) put(bucket, key string, data []byte, header http.Header, condition condition) *object {
	o.mutex.Lock()
	defer o.mutex.Unlock()
	b := o.buckets[bucket]
	if b == nil {
		b = &objectBucket{objects: map[string]*object{}}
		o.buckets[bucket] = b
	}
	existing := b.objects[key]
	if !condition.isMet(existing) {
		return nil
	}
	if existing == nil {
		index := sort.SearchStrings(b.keys, key)
		b.keys = append(b.keys, "")
		copy(b.keys[index+1:], b.keys[index:])
		b.keys[index] = key
	}
	b.objects[key] = o.newObject(data, header)
	return b.objects[key]
}

// newObject gives the object an ETag that no other one has. Its form is that of an upload in parts, so that no client
// takes it for an MD5, which would take the processor longer than the rest of a write.
func (o *objects) newObject(data []byte, header http.Header) *object {
	o.writes++
	return &object{data, fmt.Sprintf(`"%032x-1"`, o.writes), header, time.Now().UTC()}
}

func (o *objects) delete(bucket, key string) {
	o.mutex.Lock()
	defer o.mutex.Unlock()
	b := o.buckets[bucket]
	if b == nil || b.objects[key] == nil {
		return
	}
	delete(b.objects, key)
	index := sort.SearchStrings(b.keys, key)
	b.keys = append(b.keys[:index], b.keys[index+1:]...)
}

func (o *objects) beginUpload(header http.Header) string {
	o.mutex.Lock()
	defer o.mutex.Unlock()
	o.writes++
	id := fmt.Sprintf("upload-%d", o.writes)
	o.uploads[id] = &upload{header, map[int]*object{}}
	return id
}

// putPart writes a part of an upload, or returns nil if there is no such upload.
func (o *objects) putPart(id string, number int, data []byte) *object {
	o.mutex.Lock()
	defer o.mutex.Unlock()
	upload := o.uploads[id]
	if upload == nil {
		return nil
	}
	upload.parts[number] = o.newObject(data, nil)
	return upload.parts[number]
}

// endUpload ends an upload. It returns the content of the named parts, or false if there is no such upload or part.
func (o *objects) endUpload(id string, numbers []int) ([]byte, http.Header, bool) {
	o.mutex.Lock()
	defer o.mutex.Unlock()
	upload := o.uploads[id]
	if upload == nil {
		return nil, nil, false
	}
	var parts [][]byte
	for _, number := range numbers {
		part := upload.parts[number]
		if part == nil {
			return nil, nil, false
		}
		parts = append(parts, part.data)
	}
	delete(o.uploads, id)
	return bytes.Join(parts, nil), upload.header, true
}

// A listing is a page of the keys of a bucket.
type listing struct {
	keys     []string
	objects  []*object
	prefixes []string
	next     string // where the next page begins, or "" after the last one
}

// list returns up to `limit` keys and common prefixes after a marker, which is a key or the `next` of another listing.
func (o *objects) list(bucket, prefix, delimiter, marker string, limit int) listing {
	o.mutex.RLock()
	defer o.mutex.RUnlock()
	var page listing
	b := o.buckets[bucket]
	if b == nil {
		return page
	}
	index := sort.SearchStrings(b.keys, prefix)
	if marker >= prefix && marker != "" {
		index = sort.Search(len(b.keys), func(i int) bool { return b.keys[i] > marker })
	}
	last := ""
	for index < len(b.keys) && strings.HasPrefix(b.keys[index], prefix) {
		if len(page.keys)+len(page.prefixes) == limit {
			page.next = last
			break
		}
		key := b.keys[index]
		end := -1
		if delimiter != "" {
			end = strings.Index(key[len(prefix):], delimiter)
		}
		if end < 0 {
			page.keys, page.objects = append(page.keys, key), append(page.objects, b.objects[key])
			last = key
			index++
			continue
		}
		common := key[:len(prefix)+end+len(delimiter)]
		page.prefixes = append(page.prefixes, common)
		last = common + "\U0010ffff" // after every key below it
		index = sort.SearchStrings(b.keys, last)
	}
	return page
}
