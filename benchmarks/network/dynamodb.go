package main

import (
	"bytes"
	"encoding/json"
	"net/http"
	"strings"
	"sync"
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
	tables     map[string]*table
}

// A table is one of the engine that some request was about.
type table struct {
	name     string
	schema   schema
	capacity *tableCapacity
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
	e.due = e.due.Add(milliseconds(d.bodyMs(a.body) * d.latencies.scale.factor()))
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
		return throttledAnswer(part, limit)
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
	table := d.find(e, string(textOf(members["TableName"])))
	if table == nil {
		return nil
	}
	return []part{makePart(table, members)}
}

func (d *dynamoDB) statementPart(e *exchange, text []byte) []part {
	members := membersOf(text)
	var statement string
	if json.Unmarshal(members["Statement"], &statement) != nil {
		return nil
	}
	table := d.find(e, tableOfStatement(statement))
	if table == nil {
		return nil
	}
	return []part{statementPart(table, statement, members)}
}

// batch answers a BatchWriteItem or a BatchGetItem: each item meets the bucket of its own partition, and throttled
// items come back as unprocessed, unless all are throttled.
func (d *dynamoDB) batch(e *exchange) answer {
	unprocessed := map[string]string{"BatchWriteItem": "UnprocessedItems", "BatchGetItem": "UnprocessedKeys"}[e.operation]
	requested := parseBatch(membersOf(e.body)["RequestItems"])
	var admitted, throttled batch
	var units [kinds]float64
	var refusal answer
	for _, elements := range requested {
		table := d.find(e, elements.table)
		if table == nil {
			return d.engine.send(e, e.body) // which refuses it
		}
		admittedHere, throttledHere := elements, elements
		admittedHere.elements, throttledHere.elements = nil, nil
		for _, element := range elements.elements {
			part := table.batchPart(e.operation, elements, element)
			if limit := part.take(); limit != none {
				refusal = throttledAnswer(part, limit)
				throttledHere.elements = append(throttledHere.elements, element)
				continue
			}
			admittedHere.elements = append(admittedHere.elements, element)
			units[part.kind] += part.units
		}
		admitted, throttled = append(admitted, admittedHere), append(throttled, throttledHere)
		e.counts.ThrottledItems += len(throttledHere.elements)
	}
	body := e.body
	if !throttled.isEmpty() {
		e.counts.ThrottledRequests = 1
		if admitted.isEmpty() {
			return refusal
		}
		body = replaceMember(body, "RequestItems", admitted.text())
	}
	a := d.engine.send(e, body)
	if a.status == http.StatusOK {
		members := membersOf(a.body)
		units[read] += d.settleItems(e, admitted, members["Responses"])
		if consumed, ok := consumedUnits(members); ok {
			units = map[string][kinds]float64{"BatchWriteItem": {write: consumed}, "BatchGetItem": {read: consumed}}[e.operation]
		}
		if !throttled.isEmpty() {
			a = a.with(replaceMember(a.body, unprocessed, parseBatch(members[unprocessed]).with(throttled).text()))
		}
	}
	e.counts.addUnits(write, units[write])
	e.counts.addUnits(read, units[read])
	return a
}

// batchPart makes the part of an element of a batch: a key to read, or a put or a delete.
func (k *table) batchPart(operation string, elements tableBatch, element []byte) part {
	if operation == "BatchGetItem" {
		return part{k, read, itemOf(element, k.schema).position(), elements.unitsOfRead()}
	}
	var request part
	c := cursor{text: element}
	c.members(func(action []byte) { request = actionPart(k, string(action), membersOf(c.skip())) })
	request.table = k
	return request
}

// unitsOfRead returns the units that 4 KB of a table's keys in a BatchGetItem take.
func (b tableBatch) unitsOfRead() float64 {
	return unitsOfRead(membersOf(bytes.Join([][]byte{b.head, []byte("[]"), b.tail}, nil)))
}

// settleItems takes what the items in an answer of BatchGetItem need beyond the least, and returns the sum.
func (d *dynamoDB) settleItems(e *exchange, requested batch, responses []byte) float64 {
	more := 0.0
	if len(responses) == 0 {
		return more
	}
	items := parseBatch(responses)
	for _, elements := range requested {
		table, factor := d.find(e, elements.table), elements.unitsOfRead()
		for _, answered := range items {
			if answered.table != elements.table {
				continue
			}
			for _, text := range answered.elements {
				item := itemOf(text, table.schema)
				part := part{table, read, item.position(), factor}
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
			table := d.find(e, string(textOf(members["TableName"])))
			if table == nil {
				return
			}
			part := actionPart(table, string(action), members)
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
		return cancelledAnswer(limits)
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
func (d *dynamoDB) find(e *exchange, name string) *table {
	d.mutex.Lock()
	defer d.mutex.Unlock()
	if table := d.tables[name]; table != nil || name == "" {
		return table
	}
	schema, arn, err := d.engine.describe(e, name)
	if err != nil {
		return nil
	}
	table := &table{name, schema, newTableCapacity(d.parameters, arn, d.partitions, d.isNew, time.Now())}
	d.tables[name] = table
	return table
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
	for name, table := range d.tables {
		described[name] = table.capacity.describe()
	}
	return described
}
