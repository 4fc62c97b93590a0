package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"
)

// An engine is the DynamoDB behind the world. Its connections are kept, and each is used by one request at a time, in the
// goroutine of the request. http.Transport takes more of the processor: it has two goroutines for each connection.
type engine struct {
	address string
	mutex   sync.Mutex
	idle    []*engineConnection
}

type engineConnection struct {
	net.Conn
	reader *bufio.Reader
}

// Headers that are about one connection, or about a body that may be replaced.
var notForwarded = map[string]bool{
	"Connection": true, "Content-Length": true, "Expect": true, "Transfer-Encoding": true,
}

// send sends a request of a client with a body in place of its own, given in pieces, and reads the answer when it is due,
// so that it waits once and not twice.
func (g *engine) send(e *exchange, pieces ...[]byte) answer {
	connection, err := g.begin(e.host, e.header, pieces...)
	if err == nil {
		sleep(time.Until(e.due))
		begin := time.Now()
		var a answer
		if a, err = g.end(connection); err == nil {
			e.counts.addLate(time.Since(begin))
			return a
		}
	}
	return newAnswer(http.StatusInternalServerError, map[string]string{
		"__type":  dynamoDBErrors + "InternalServerError",
		"message": "the engine behind the world does not answer: " + err.Error(),
	})
}

// begin sends a request, and returns the connection on which its answer comes.
func (g *engine) begin(host string, header http.Header, pieces ...[]byte) (*engineConnection, error) {
	connection, err := g.connect()
	if err != nil {
		return nil, err
	}
	length := 0
	for _, piece := range pieces {
		length += len(piece)
	}
	var head bytes.Buffer
	fmt.Fprintf(&head, "POST / HTTP/1.1\r\nHost: %s\r\nContent-Length: %d\r\n", host, length)
	header.WriteSubset(&head, notForwarded)
	head.WriteString("\r\n")
	request := append(net.Buffers{head.Bytes()}, pieces...)
	if _, err := request.WriteTo(connection.Conn); err != nil {
		connection.Close()
		return nil, err
	}
	return connection, nil
}

// end reads an answer.
func (g *engine) end(connection *engineConnection) (answer, error) {
	response, err := http.ReadResponse(connection.reader, nil)
	if err != nil {
		connection.Close()
		return answer{}, err
	}
	text, err := readAll(response.Body, response.ContentLength)
	if err != nil || response.Close {
		connection.Close()
	} else {
		g.release(connection)
	}
	return answer{response.StatusCode, response.Header, text}, err
}

func (g *engine) connect() (*engineConnection, error) {
	g.mutex.Lock()
	if last := len(g.idle) - 1; last >= 0 {
		connection := g.idle[last]
		g.idle = g.idle[:last]
		g.mutex.Unlock()
		return connection, nil
	}
	g.mutex.Unlock()
	connection, err := net.Dial("tcp", g.address)
	if err != nil {
		return nil, err
	}
	return &engineConnection{connection, bufio.NewReader(connection)}, nil
}

func (g *engine) release(connection *engineConnection) {
	g.mutex.Lock()
	defer g.mutex.Unlock()
	g.idle = append(g.idle, connection)
}

// describe returns the keys and the ARN of a table.
func (g *engine) describe(e *exchange, name string) (schema, string, error) {
	header := e.header.Clone()
	version, _, _ := strings.Cut(header.Get(targetHeader), ".")
	header.Set(targetHeader, version+".DescribeTable")
	connection, err := g.begin(e.host, header, newAnswer(0, map[string]string{"TableName": name}).body)
	if err != nil {
		return schema{}, "", err
	}
	a, err := g.end(connection)
	if err != nil || a.status != http.StatusOK {
		return schema{}, "", fmt.Errorf("no table %s: status %d, %v", name, a.status, err)
	}
	var described struct {
		Table struct {
			TableArn  string
			KeySchema []struct{ AttributeName, KeyType string }
		}
	}
	err = json.Unmarshal(a.body, &described)
	var keys schema
	for _, key := range described.Table.KeySchema {
		if key.KeyType == "HASH" {
			keys.partitionKey = key.AttributeName
		} else {
			keys.sortKey = key.AttributeName
		}
	}
	return keys, described.Table.TableArn, err
}

func readAll(body io.Reader, length int64) ([]byte, error) {
	if length < 0 {
		return io.ReadAll(body)
	}
	text := make([]byte, length)
	_, err := io.ReadFull(body, text)
	return text, err
}
