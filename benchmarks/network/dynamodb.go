package main

import (
	"bytes"
	"context"
	"encoding/json"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

const (
	dynamoDBService = "dynamodb"
	targetHeader    = "X-Amz-Target"
	// A shorter rest of a wait, for a small body in an answer, is left out: it would take longer to sleep.
	shortestSleep = 100 * time.Microsecond
)

// A dynamoDB answers in front of an engine: late, and only what the capacity of partitions and tables admits. The
// engine must not verify signatures, because a batch is sent without its throttled elements.
type dynamoDB struct {
	parameters dynamoDBParameters
	connection float64 // ms
	latencies  *latencies
	statistics *statistics
	engine     *engine
	partitions int
	isNew      bool
	mutex      sync.Mutex
	tables     map[string]*knownTable
}

// A knownTable is a table of the engine that some request was about.
type knownTable struct {
	name     string
	schema   schema
	capacity *table
}

// An exchange is a request, when its answer is due, and what it is counted as.
type exchange struct {
	operation string
	host      string
	header    http.Header
	body      []byte
	due       time.Time
	counts    counts
}

// handle answers a request when it is due.
func (d *dynamoDB) handle(r *http.Request, isFirst bool) (answer, error) {
	arrival := time.Now()
	body, err := readAll(r.Body, r.ContentLength)
	if err != nil {
		return answer{}, err
	}
	_, operation, _ := strings.Cut(r.Header.Get(targetHeader), ".")
	e := &exchange{operation: operation, host: r.Host, header: r.Header, body: body}
	extra := d.bodyMs(body)
	if isFirst {
		extra += d.connection
		e.counts.NewConnections = 1
	}
	e.due = arrival.Add(d.latencies.draw(operation, extra))
	a := d.answer(e)
	e.due = e.due.Add(milliseconds(d.bodyMs(a.body) * d.latencies.scale))
	if rest := time.Until(e.due); rest > shortestSleep {
		sleep(rest)
	}
	e.counts.Requests, e.counts.BytesUp, e.counts.BytesDown = 1, len(body), len(a.body)
	e.counts.WaitMs = inMilliseconds(time.Since(arrival))
	d.statistics.record(dynamoDBService, operation, e.counts)
	return a, nil
}

func (d *dynamoDB) bodyMs(body []byte) float64 {
	return d.parameters.Body.Value * float64(len(body)) / 1024
}

func (d *dynamoDB) answer(e *exchange) answer {
	switch e.operation {
	case "BatchWriteItem", "BatchGetItem":
		return d.batch(e)
	case "BatchExecuteStatement":
		return d.statements(e)
	case "TransactWriteItems", "TransactGetItems":
		return d.transaction(e)
	case "CreateTable", "DeleteTable":
		d.forget(string(textOf(membersOf(e.body)["TableName"])))
		return d.engine.send(e, e.body)
	default:
		return d.single(e)
	}
}

// single answers a request about one item or one page.
func (d *dynamoDB) single(e *exchange) answer {
	parts := d.singlePart(e)
	if len(parts) == 0 {
		return d.engine.send(e, e.body)
	}
	part := parts[0]
	if limit := part.take(); limit != none {
		e.counts.ThrottledRequests, e.counts.ThrottledItems = 1, 1
		return throttled(part, limit)
	}
	units := part.units
	a := d.engine.send(e, e.body)
	if a.status == http.StatusOK {
		units = unitsOfAnswer(part, membersOf(a.body))
		part.settle(units)
	}
	e.counts.addUnits(part.kind, units)
	return a
}

// singlePart returns the part of a request, or none for an operation or a table without capacity.
func (d *dynamoDB) singlePart(e *exchange) []part {
	if e.operation == "ExecuteStatement" {
		return d.statementPart(e, e.body)
	}
	makePart := singleParts[e.operation]
	if makePart == nil {
		return nil
	}
	members := membersOf(e.body)
	known := d.find(e, string(textOf(members["TableName"])))
	if known == nil {
		return nil
	}
	return []part{makePart(known, members)}
}

func (d *dynamoDB) statementPart(e *exchange, text []byte) []part {
	members := membersOf(text)
	var statement string
	if json.Unmarshal(members["Statement"], &statement) != nil {
		return nil
	}
	known := d.find(e, tableOfStatement(statement))
	if known == nil {
		return nil
	}
	return []part{statementPart(known, statement, members)}
}

// batch answers a BatchWriteItem or a BatchGetItem: each item meets the bucket of its own partition, and throttled
// items come back as unprocessed, unless all are throttled.
func (d *dynamoDB) batch(e *exchange) answer {
	unprocessed := map[string]string{"BatchWriteItem": "UnprocessedItems", "BatchGetItem": "UnprocessedKeys"}[e.operation]
	requested := parseBatch(membersOf(e.body)["RequestItems"])
	var admitted, rest batch
	var units [kinds]float64
	var refused part
	var reached limit
	for _, elements := range requested {
		known := d.find(e, elements.table)
		if known == nil {
			return d.engine.send(e, e.body) // which refuses it
		}
		kept, dropped := elements, elements
		kept.elements, dropped.elements = nil, nil
		for _, element := range elements.elements {
			part := known.batchPart(e.operation, elements, element)
			if limit := part.take(); limit != none {
				refused, reached = part, limit
				dropped.elements = append(dropped.elements, element)
				continue
			}
			kept.elements = append(kept.elements, element)
			units[part.kind] += part.units
		}
		admitted, rest = append(admitted, kept), append(rest, dropped)
		e.counts.ThrottledItems += len(dropped.elements)
	}
	body := e.body
	if !rest.isEmpty() {
		e.counts.ThrottledRequests = 1
		if admitted.isEmpty() {
			return throttled(refused, reached)
		}
		body = replaceMember(body, "RequestItems", admitted.text())
	}
	a := d.engine.send(e, body)
	if a.status == http.StatusOK {
		members := membersOf(a.body)
		units[read] += d.settleItems(e, admitted, members["Responses"])
		if consumed, isThere := consumedUnits(members); isThere {
			units = map[string][kinds]float64{"BatchWriteItem": {write: consumed}, "BatchGetItem": {read: consumed}}[e.operation]
		}
		if !rest.isEmpty() {
			a = a.with(replaceMember(a.body, unprocessed, parseBatch(members[unprocessed]).with(rest).text()))
		}
	}
	e.counts.addUnits(write, units[write])
	e.counts.addUnits(read, units[read])
	return a
}

// batchPart makes the part of an element of a batch: a key to read, or a put or a delete.
func (k *knownTable) batchPart(operation string, elements tableBatch, element []byte) part {
	if operation == "BatchGetItem" {
		return part{k, read, itemOf(element, k.schema).position(), elements.unitsOfRead()}
	}
	var made part
	c := cursor{text: element}
	c.members(func(action []byte) { made = actionPart(k, string(action), membersOf(c.skip())) })
	made.table = k
	return made
}

// unitsOfRead returns the units that 4 KB of a table's keys in a BatchGetItem take.
func (b tableBatch) unitsOfRead() float64 {
	return unitsOfRead(membersOf(bytes.Join([][]byte{b.before, []byte("[]"), b.after}, nil)))
}

// settleItems takes what the items in an answer of BatchGetItem need beyond the least, and returns the sum.
func (d *dynamoDB) settleItems(e *exchange, requested batch, responses []byte) float64 {
	more := 0.0
	if len(responses) == 0 {
		return more
	}
	items := parseBatch(responses)
	for _, elements := range requested {
		known, factor := d.find(e, elements.table), elements.unitsOfRead()
		for _, answered := range items {
			if answered.table != elements.table {
				continue
			}
			for _, text := range answered.elements {
				item := itemOf(text, known.schema)
				part := part{known, read, item.position(), factor}
				units := unitsOf(item.bytes, readUnitBytes) * factor
				part.settle(units)
				more += units - factor
			}
		}
	}
	return more
}

// statements answers a BatchExecuteStatement: each statement succeeds or fails by itself.
func (d *dynamoDB) statements(e *exchange) answer {
	statements := elementsOf(membersOf(e.body)["Statements"])
	responses := make([][]byte, len(statements))
	parts := make([][]part, len(statements))
	var admitted [][]byte
	for number, statement := range statements {
		parts[number] = d.statementPart(e, statement)
		for _, part := range parts[number] {
			if part.take() != none {
				responses[number] = throttledStatement(part)
				e.counts.ThrottledItems++
			}
		}
		if responses[number] == nil {
			admitted = append(admitted, statement)
		}
	}
	a := newAnswer(http.StatusOK, map[string]any{})
	body := e.body
	if e.counts.ThrottledItems > 0 {
		e.counts.ThrottledRequests = 1
		body = replaceMember(body, "Statements", arrayOf(admitted))
	}
	if len(admitted) > 0 {
		a = d.engine.send(e, body)
	}
	if a.status != http.StatusOK {
		return a
	}
	members := membersOf(a.body)
	consumed, isConsumed := consumedUnits(members)
	share := consumed / float64(len(admitted)) // DynamoDB reports their sum
	answered := elementsOf(members["Responses"])
	for number := range responses {
		if responses[number] != nil || len(answered) == 0 {
			continue
		}
		responses[number], answered = answered[0], answered[1:]
		for _, part := range parts[number] {
			units := share
			if !isConsumed {
				units = unitsOfAnswer(part, membersOf(responses[number]))
			}
			part.settle(units)
			e.counts.addUnits(part.kind, units)
		}
	}
	if e.counts.ThrottledItems > 0 {
		a = a.with(replaceMember(a.body, "Responses", arrayOf(responses)))
	}
	return a
}

// transaction answers a TransactWriteItems or a TransactGetItems, which is cancelled if one action is throttled. It
// takes twice the units of its actions.
func (d *dynamoDB) transaction(e *exchange) answer {
	var limits []limit
	for _, text := range elementsOf(membersOf(e.body)["TransactItems"]) {
		limit := none
		c := cursor{text: text}
		c.members(func(action []byte) {
			members := membersOf(c.skip())
			known := d.find(e, string(textOf(members["TableName"])))
			if known == nil {
				return
			}
			part := actionPart(known, string(action), members)
			if part.kind == read {
				part.units = 1 // reads of transactions are consistent
			}
			part.units *= 2
			if limit = part.take(); limit == none {
				e.counts.addUnits(part.kind, part.units)
			}
		})
		if limits = append(limits, limit); limit != none {
			e.counts.ThrottledItems++
		}
	}
	if e.counts.ThrottledItems > 0 {
		e.counts.ThrottledRequests = 1
		return cancelled(limits)
	}
	return d.engine.send(e, e.body)
}

func (p part) take() limit {
	return p.table.capacity.take(p.kind, p.position, p.units, time.Now())
}

// settle takes what a request needed beyond what it took.
func (p part) settle(units float64) {
	if units > p.units {
		p.table.capacity.settle(p.kind, p.position, units-p.units, time.Now())
	}
}

// find returns a table of the engine, or nil if it has none of this name.
func (d *dynamoDB) find(e *exchange, name string) *knownTable {
	d.mutex.Lock()
	defer d.mutex.Unlock()
	if known := d.tables[name]; known != nil || name == "" {
		return known
	}
	schema, arn, err := d.engine.describe(e, name)
	if err != nil {
		return nil
	}
	known := &knownTable{name, schema, newTable(d.parameters, arn, d.partitions, d.isNew, time.Now())}
	d.tables[name] = known
	return known
}

func (d *dynamoDB) forget(name string) {
	d.mutex.Lock()
	defer d.mutex.Unlock()
	delete(d.tables, name)
}

func (d *dynamoDB) describe() map[string]any {
	d.mutex.Lock()
	defer d.mutex.Unlock()
	described := map[string]any{}
	for name, known := range d.tables {
		described[name] = known.capacity.describe()
	}
	return described
}

type connectionKey struct{}

// withConnection notes in the context of a connection that no request has come on it.
func withConnection(ctx context.Context, _ net.Conn) context.Context {
	return context.WithValue(ctx, connectionKey{}, new(atomic.Bool))
}

func isFirstRequest(r *http.Request) bool {
	used, isThere := r.Context().Value(connectionKey{}).(*atomic.Bool)
	return isThere && !used.Swap(true)
}
