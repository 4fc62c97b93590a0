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
	dynamoDBService  = "dynamodb"
	targetHeader     = "X-Amz-Target"
	askedCapacity    = "ReturnConsumedCapacity"
	reportedCapacity = "ConsumedCapacity"
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
	trace      *trace
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
	members   map[string][]byte // of the body
	due       time.Time
	counts    counts
	positions []position // of the items that it is about
}

// handle answers a request when it is due.
func (d *dynamoDB) handle(r *http.Request, isFirst bool) (answer, error) {
	arrival := time.Now()
	body, err := readAll(r.Body, r.ContentLength)
	if err != nil {
		return answer{}, err
	}
	_, operation, _ := strings.Cut(r.Header.Get(targetHeader), ".")
	e := &exchange{operation: operation, host: r.Host, header: r.Header, body: body, members: membersOf(body)}
	extra := d.bodyMs(body)
	if isFirst {
		extra += d.connection
		e.counts.NewConnections = 1
	}
	e.due = arrival.Add(d.latencies.draw(operation, extra))
	a := d.answer(e)
	if !e.asksForCapacity() {
		if remainder := withoutMember(a.body, reportedCapacity); len(remainder) < len(a.body) {
			a = a.with(remainder)
		}
	}
	e.due = e.due.Add(milliseconds(d.bodyMs(a.body) * d.latencies.scale.factor()))
	if rest := time.Until(e.due); rest > shortestSleep {
		sleep(rest)
	}
	e.counts.Requests, e.counts.BytesUp, e.counts.BytesDown = 1, len(body), len(a.body)
	e.counts.WaitMs = inMilliseconds(time.Since(arrival))
	d.statistics.record(dynamoDBService, operation, e.counts)
	d.trace.add(arrival, operation, a.status, e.positions)
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
		d.forget(string(textOf(e.members["TableName"])))
		return d.engine.send(e, e.body)
	default:
		return d.single(e)
	}
}

// single answers a request about one item or one page.
func (d *dynamoDB) single(e *exchange) answer {
	part := d.singlePart(e)
	if part == nil {
		return d.engine.send(e, e.body)
	}
	if limit := e.take(part); limit != none {
		e.counts.ThrottledRequests, e.counts.ThrottledItems = 1, 1
		return throttledAnswer(part, limit)
	}
	a, members := d.sendCounted(e, e.body)
	part.raise(unitsOfItems(part, members))
	e.settle(parts{part}, members)
	return a
}

// singlePart returns the part of a request, or nil for an operation or a table without capacity.
func (d *dynamoDB) singlePart(e *exchange) *part {
	if e.operation == "ExecuteStatement" {
		return d.statementPart(e, e.members)
	}
	makePart := singleParts[e.operation]
	if makePart == nil {
		return nil
	}
	table := d.find(e, string(textOf(e.members["TableName"])))
	if table == nil {
		return nil
	}
	return makePart(table, e.members)
}

func (d *dynamoDB) statementPart(e *exchange, members map[string][]byte) *part {
	var statement string
	if json.Unmarshal(members["Statement"], &statement) != nil {
		return nil
	}
	table := d.find(e, tableOfStatement(statement))
	if table == nil {
		return nil
	}
	return statementPart(table, statement, members)
}

// batch answers a BatchWriteItem or a BatchGetItem: each item meets the bucket of its own partition, and throttled
// items come back as unprocessed, unless all are throttled.
func (d *dynamoDB) batch(e *exchange) answer {
	unprocessed := map[string]string{"BatchWriteItem": "UnprocessedItems", "BatchGetItem": "UnprocessedKeys"}[e.operation]
	requested := parseBatch(e.members["RequestItems"])
	var admitted, throttled batch
	var parts parts
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
			if limit := e.take(part); limit != none {
				refusal = throttledAnswer(part, limit)
				throttledHere.elements = append(throttledHere.elements, element)
				continue
			}
			admittedHere.elements = append(admittedHere.elements, element)
			parts = append(parts, part)
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
		body = bytes.Join(replaceMember(body, "RequestItems", admitted.text()), nil)
	}
	a, members := d.sendCounted(e, body)
	parts.raiseToItems(members["Responses"])
	e.settle(parts, members)
	if a.status == http.StatusOK && !throttled.isEmpty() {
		rest := parseBatch(members[unprocessed]).with(throttled)
		a = a.with(bytes.Join(replaceMember(a.body, unprocessed, rest.text()), nil))
	}
	return a
}

// batchPart makes the part of an element of a batch: a key to read, or a put or a delete.
func (k *table) batchPart(operation string, elements tableBatch, element []byte) *part {
	if operation == "BatchGetItem" {
		return &part{k, read, itemOf(element, k.schema).position(), elements.unitsOfRead()}
	}
	request := &part{table: k}
	c := cursor{text: element}
	c.members(func(action []byte) { request = actionPart(k, string(action), membersOf(c.skip())) })
	return request
}

// unitsOfRead returns the units that 4 KB of a table's keys in a BatchGetItem take.
func (b tableBatch) unitsOfRead() float64 {
	return unitsOfRead(membersOf(bytes.Join([][]byte{b.head, []byte("[]"), b.tail}, nil)))
}

// statements answers a BatchExecuteStatement: each statement succeeds or fails by itself.
func (d *dynamoDB) statements(e *exchange) answer {
	statements := elementsOf(e.members["Statements"])
	responses := make([][]byte, len(statements))
	partsByNumber := make([]*part, len(statements))
	var admitted [][]byte
	for number, statement := range statements {
		part := d.statementPart(e, membersOf(statement))
		if part != nil && e.take(part) != none {
			responses[number] = throttledStatement(part)
			e.counts.ThrottledItems++
			continue
		}
		partsByNumber[number] = part
		admitted = append(admitted, statement)
	}
	body := e.body
	if e.counts.ThrottledItems > 0 {
		e.counts.ThrottledRequests = 1
		body = bytes.Join(replaceMember(body, "Statements", arrayOf(admitted)), nil)
	}
	a, members := newAnswer(http.StatusOK, map[string]any{}), map[string][]byte{}
	if len(admitted) > 0 {
		a, members = d.sendCounted(e, body)
	}
	var parts parts
	answered := elementsOf(members["Responses"])
	for number, part := range partsByNumber {
		if responses[number] == nil && len(answered) > 0 {
			responses[number], answered = answered[0], answered[1:]
		}
		if part != nil {
			part.raise(unitsOfItems(part, membersOf(responses[number])))
			parts = append(parts, part)
		}
	}
	e.settle(parts, members)
	if a.status == http.StatusOK && e.counts.ThrottledItems > 0 {
		a = a.with(bytes.Join(replaceMember(a.body, "Responses", arrayOf(responses)), nil))
	}
	return a
}

// transaction answers a TransactWriteItems or a TransactGetItems, which is cancelled if one action is throttled. It
// takes twice the units of its actions.
func (d *dynamoDB) transaction(e *exchange) answer {
	var limits []limit
	var parts parts
	for _, text := range elementsOf(e.members["TransactItems"]) {
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
			if limit = e.take(part); limit == none {
				parts = append(parts, part)
			}
		})
		if limits = append(limits, limit); limit != none {
			e.counts.ThrottledItems++
		}
	}
	if e.counts.ThrottledItems > 0 {
		e.counts.ThrottledRequests = 1
		e.settle(parts, nil)
		return cancelledAnswer(limits)
	}
	a, members := d.sendCounted(e, e.body)
	e.settle(parts, members)
	return a
}

// take takes the units of a part of the request, or returns the limit that throttles it.
func (e *exchange) take(p *part) limit {
	e.positions = append(e.positions, p.position)
	return p.table.capacity.take(p.kind, p.position, p.units, time.Now())
}

// asksForCapacity returns whether the client wants ConsumedCapacity in the answer.
func (e *exchange) asksForCapacity() bool {
	level := string(textOf(e.members[askedCapacity]))
	return level == "TOTAL" || level == "INDEXES"
}

// sendCounted sends a request so that the engine reports ConsumedCapacity, and returns the answer and its members.
func (d *dynamoDB) sendCounted(e *exchange, body []byte) (answer, map[string][]byte) {
	pieces := [][]byte{body}
	if !e.asksForCapacity() {
		pieces = replaceMember(body, askedCapacity, []byte(`"TOTAL"`))
	}
	a := d.engine.send(e, pieces...)
	return a, membersOf(a.body)
}

// settle raises the parts of an answered request to what the engine reports for their tables, in equal shares, and
// counts them. The report may be too low: moto's is a constant.
func (e *exchange) settle(admitted parts, members map[string][]byte) {
	for name, units := range consumedUnits(members[reportedCapacity]) {
		shares := admitted.of(name)
		for _, part := range shares {
			units -= part.units
		}
		for _, part := range shares {
			part.raise(part.units + units/float64(len(shares)))
		}
	}
	for _, part := range admitted {
		e.counts.addUnits(part.kind, part.units)
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
