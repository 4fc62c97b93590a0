package main

import (
	"bytes"
	"regexp"
	"strings"
	"time"
)

// A part is what one item of a request takes: units of a kind, from the partition at its position. Before the answer,
// the units are the fewest that it can take.
type part struct {
	table    *table
	kind     kind
	position position
	units    float64
}

// raise takes what an admitted part needs beyond its units.
func (p *part) raise(units float64) {
	if units > p.units {
		p.table.capacity.settle(p.kind, p.position, units-p.units, time.Now())
		p.units = units
	}
}

// Parts of one request.
type parts []*part

// of returns the parts of a table.
func (p parts) of(name string) parts {
	var some parts
	for _, part := range p {
		if part.table.name == name {
			some = append(some, part)
		}
	}
	return some
}

// raiseToItems raises the parts of a BatchGetItem to the sizes of the items in its answer.
func (p parts) raiseToItems(responses []byte) {
	for _, answered := range parseBatch(responses) {
		parts := map[position]*part{}
		var schema schema
		for _, part := range p.of(answered.table) {
			parts[part.position] = part
			schema = part.table.schema
		}
		for _, text := range answered.elements {
			item := itemOf(text, schema)
			if part := parts[item.position()]; part != nil {
				part.raise(unitsOf(item.bytes, readUnitBytes) * part.units)
			}
		}
	}
}

// singleParts make the part of a request about one item or one page.
var singleParts = map[string]func(table *table, members map[string][]byte) *part{
	"PutItem":    putPart,
	"UpdateItem": keyPart(write),
	"DeleteItem": keyPart(write),
	"GetItem":    keyPart(read),
	"Query":      queryPart,
	"Scan":       scanPart,
}

func putPart(table *table, members map[string][]byte) *part {
	item := itemOf(members["Item"], table.schema)
	return &part{table, write, item.position(), unitsOf(item.bytes, writeUnitBytes)}
}

func keyPart(kind kind) func(table *table, members map[string][]byte) *part {
	return func(table *table, members map[string][]byte) *part {
		units := 1.0
		if kind == read {
			units = unitsOfRead(members)
		}
		return &part{table, kind, itemOf(members["Key"], table.schema).position(), units}
	}
}

// queryPart takes all units of a page from the partition where the page begins.
func queryPart(table *table, members map[string][]byte) *part {
	name := table.schema.partitionKey
	for alias, attribute := range membersOf(members["ExpressionAttributeNames"]) {
		if string(textOf(attribute)) == name {
			name = alias
		}
	}
	placeholder, _ := operandOf(string(textOf(members["KeyConditionExpression"])), name)
	value := cursor{text: membersOf(members["ExpressionAttributeValues"])[placeholder]}
	partitionKey, _ := value.attribute()
	start := itemOf(members["ExclusiveStartKey"], table.schema)
	return &part{table, read, positionOf(partitionKey, start.sortKey), unitsOfRead(members)}
}

func scanPart(table *table, members map[string][]byte) *part {
	start := itemOf(members["ExclusiveStartKey"], table.schema)
	return &part{table, read, start.position(), unitsOfRead(members)}
}

// unitsOfRead returns the units that 4 KB take.
func unitsOfRead(members map[string][]byte) float64 {
	if string(members["ConsistentRead"]) == "true" {
		return 1
	}
	return 0.5
}

// actionPart makes the part of an action of a transaction or of a BatchWriteItem, such as {"Put": {...}}.
func actionPart(table *table, action string, members map[string][]byte) *part {
	switch action {
	case "Put", "PutRequest":
		return putPart(table, members)
	case "Get":
		return keyPart(read)(table, members)
	default:
		return keyPart(write)(table, members)
	}
}

var statementTable = regexp.MustCompile(`(?i)\b(?:into|update|from)\s+"?([A-Za-z0-9_.-]+)`)

func tableOfStatement(statement string) string {
	if match := statementTable.FindStringSubmatch(statement); match != nil {
		return match[1]
	}
	return ""
}

// statementPart makes the part of a statement in PartiQL with its parameters.
func statementPart(table *table, statement string, members map[string][]byte) *part {
	parameters := elementsOf(members["Parameters"])
	value := func(name string) []byte {
		operand, begin := operandOf(statement, name)
		if operand != "?" {
			return []byte(operand)
		}
		number := strings.Count(statement[:begin], "?")
		if number >= len(parameters) {
			return nil
		}
		parameter := cursor{text: parameters[number]}
		text, _ := parameter.attribute()
		return text
	}
	position := positionOf(value(table.schema.partitionKey), value(table.schema.sortKey))
	if strings.EqualFold(strings.SplitN(strings.TrimSpace(statement), " ", 2)[0], "select") {
		return &part{table, read, position, unitsOfRead(members)}
	}
	size := 0
	for _, parameter := range parameters {
		value := cursor{text: parameter}
		_, bytes := value.attribute()
		size += bytes
	}
	return &part{table, write, position, unitsOf(size, writeUnitBytes)}
}

// operandOf returns what comes after a name and `=` or `:` in an expression, and where it begins: a placeholder or `?`,
// or the content of a text in quotation marks.
func operandOf(expression, name string) (string, int) {
	for offset := 0; ; {
		index := strings.Index(expression[offset:], name)
		if index < 0 || name == "" {
			return "", 0
		}
		isEndOfName := offset+index > 0 && isInName(expression[offset+index-1])
		offset += index + len(name)
		rest := strings.TrimLeft(strings.TrimLeft(expression[offset:], `"'`), " ")
		if isEndOfName || rest == "" || rest[0] != '=' && rest[0] != ':' {
			continue
		}
		rest = strings.TrimLeft(rest[1:], " ")
		begin := len(expression) - len(rest)
		if strings.HasPrefix(rest, "'") {
			return strings.SplitN(rest[1:], "'", 2)[0], begin
		}
		if end := strings.IndexAny(rest, " ,)}"); end >= 0 {
			rest = rest[:end]
		}
		return rest, begin
	}
}

func isInName(character byte) bool {
	return character == '_' || character >= '0' && character <= '9' || character >= 'A' && character <= 'Z' ||
		character >= 'a' && character <= 'z'
}

// A batch is the value of RequestItems, UnprocessedItems or UnprocessedKeys: elements by table.
type batch []tableBatch

type tableBatch struct {
	table      string
	head, tail []byte // the array of elements, in the value of the table
	elements   [][]byte
}

func parseBatch(text []byte) batch {
	var parsed batch
	c := cursor{text: text}
	c.members(func(name []byte) {
		value := c.skip()
		begin, end := 0, len(value)
		if bytes.HasPrefix(value, []byte("{")) { // of BatchGetItem, with the options of its reads
			options := cursor{text: value}
			options.members(func(name []byte) {
				if string(name) == "Keys" {
					begin = options.offset
					options.skip()
					end = options.offset
				}
			})
		}
		parsed = append(parsed, tableBatch{string(name), value[:begin], value[end:], elementsOf(value[begin:end])})
	})
	return parsed
}

// with returns the batch with the elements of another one.
func (b batch) with(other batch) batch {
	sum := append(batch(nil), b...)
next:
	for _, added := range other {
		for number := range sum {
			if sum[number].table == added.table {
				elements := append([][]byte(nil), sum[number].elements...)
				sum[number].elements = append(elements, added.elements...)
				continue next
			}
		}
		sum = append(sum, added)
	}
	return sum
}

func (b batch) isEmpty() bool {
	for _, table := range b {
		if len(table.elements) > 0 {
			return false
		}
	}
	return true
}

// text returns the JSON of a batch, without tables that have no elements.
func (b batch) text() []byte {
	var text bytes.Buffer
	separator := "{"
	for _, table := range b {
		if len(table.elements) == 0 {
			continue
		}
		text.WriteString(separator + `"` + table.table + `":`)
		text.Write(table.head)
		text.Write(arrayOf(table.elements))
		text.Write(table.tail)
		separator = ","
	}
	if separator == "{" {
		return []byte("{}")
	}
	text.WriteByte('}')
	return text.Bytes()
}

func arrayOf(elements [][]byte) []byte {
	return append(append([]byte{'['}, bytes.Join(elements, []byte{','})...), ']')
}

// replaceMember returns the pieces of an object with another value of a member, which is added if it is missing.
func replaceMember(object []byte, name string, value []byte) [][]byte {
	c := cursor{text: object}
	begin, end, separator := 0, 0, ""
	c.members(func(member []byte) {
		separator = ","
		if string(member) == name {
			begin = c.offset
			c.skip()
			end = c.offset
		}
	})
	if end > 0 {
		return [][]byte{object[:begin], value, object[end:]}
	}
	inner := bytes.TrimPrefix(bytes.TrimSpace(object), []byte("{"))
	return [][]byte{[]byte(`{"` + name + `":`), value, []byte(separator), inner}
}

// withoutMember removes a member from an object, in the object's memory.
func withoutMember(object []byte, name string) []byte {
	c := cursor{text: object}
	begin, end, separator := 0, 0, 0
	c.members(func(member []byte) {
		c.skip()
		if string(member) == name {
			begin = separator
			if begin == 0 { // the first member
				begin = bytes.IndexByte(object, '{') + 1
				c.read(',')
			}
			end = c.offset
		}
		separator = c.offset
	})
	return append(object[:begin], object[end:]...)
}
