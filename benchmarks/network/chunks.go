package main

import (
	"bufio"
	"errors"
	"io"
	"net/http"
	"strconv"
	"strings"
)

// readObject returns the body of a write without its chunks, and the checksum that is a trailer of it, if there is one.
func readObject(r *http.Request) ([]byte, http.Header, error) {
	if !isChunked(r.Header) {
		data, err := readAll(r.Body, r.ContentLength)
		return data, http.Header{}, err
	}
	// `size;chunk-signature=...`, a line break, the data, a line break; the last size is 0, and trailers come after it.
	reader := bufio.NewReader(r.Body)
	length, _ := strconv.Atoi(r.Header.Get("X-Amz-Decoded-Content-Length"))
	data := make([]byte, 0, length)
	for {
		line, err := readLine(reader)
		if err != nil {
			return nil, nil, err
		}
		digits, _, _ := strings.Cut(line, ";")
		size, err := strconv.ParseInt(digits, 16, 32)
		if err != nil {
			return nil, nil, err
		}
		if size == 0 {
			trailers, err := readTrailers(reader)
			return data, trailers, err
		}
		begin := len(data)
		data = append(data, make([]byte, size)...)
		if _, err := io.ReadFull(reader, data[begin:]); err != nil {
			return nil, nil, err
		}
		if _, err := readLine(reader); err != nil {
			return nil, nil, err
		}
	}
}

func isChunked(header http.Header) bool {
	return strings.HasPrefix(header.Get("X-Amz-Content-Sha256"), "STREAMING-") ||
		strings.Contains(header.Get("Content-Encoding"), "aws-chunked")
}

func readTrailers(reader *bufio.Reader) (http.Header, error) {
	trailers := http.Header{}
	for {
		line, err := readLine(reader)
		if line == "" {
			if errors.Is(err, io.EOF) {
				err = nil
			}
			return trailers, err
		}
		name, value, _ := strings.Cut(line, ":")
		trailers.Set(name, strings.TrimSpace(value))
	}
}

func readLine(reader *bufio.Reader) (string, error) {
	line, err := reader.ReadString('\n')
	return strings.TrimSpace(line), err
}
