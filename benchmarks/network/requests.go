package main

import (
	"bytes"
	"regexp"
	"strings"
)

// A part is what one item of a request takes: units of a kind, from the partition at its position.
type part struct {
	table    *knownTable
	kind     kind
	position position
	units    float64
}

// singleParts make the part of a request about one item, with the fewest units that it can take.
var singleParts = map[string]func(known *knownTable, members map[string][]byte) part{
	"PutItem":    putPart,
	"UpdateItem": keyPart(write),
	"DeleteItem": keyPart(write),
	"GetItem":    keyPart(read),
	"Query":      queryPart,
	"Scan":       scanPart,
}

func putPart(known *knownTable, members map[string][]byte) part {
	item := itemOf(members["Item"], known.schema)
	return part{known, write, item.position(), unitsOf(item.bytes, writeUnitBytes)}
}

func keyPart(kind kind) func(known *knownTable, members map[string][]byte) part {
	return func(known *knownTable, members map[string][]byte) part {
		units := 1.0
		if kind == read {
			units = unitsOfRead(members)
		}
		return part{known, kind, itemOf(members["Key"], known.schema).position(), units}
	}
}

// queryPart takes all units of a page from the partition where the page begins.
func queryPart(known *knownTable, members map[string][]byte) part {
	name := known.schema.partitionKey
	for alias, attribute := range membersOf(members["ExpressionAttributeNames"]) {
		if string(textOf(attribute)) == name {
			name = alias
		}
	}
	placeholder, _ := operandOf(string(textOf(members["KeyConditionExpression"])), name)
	value := cursor{text: membersOf(members["ExpressionAttributeValues"])[placeholder]}
	partitionKey, _ := value.attribute()
	start := itemOf(members["ExclusiveStartKey"], known.schema)
	return part{known, read, positionOf(partitionKey, start.sortKey), unitsOfRead(members)}
}

func scanPart(known *knownTable, members map[string][]byte) part {
	start := itemOf(members["ExclusiveStartKey"], known.schema)
	return part{known, read, start.position(), unitsOfRead(members)}
}

// unitsOfRead returns the units that 4 KB take.
func unitsOfRead(members map[string][]byte) float64 {
	if string(members["ConsistentRead"]) == "true" {
		return 1
	}
	return 0.5
}

// actionPart makes the part of an action of a transaction or of a BatchWriteItem, such as {"Put": {...}}.
func actionPart(known *knownTable, action string, members map[string][]byte) part {
	switch action {
	case "Put", "PutRequest":
		return putPart(known, members)
	case "Get":
		return keyPart(read)(known, members)
	default:
		return keyPart(write)(known, members)
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
func statementPart(known *knownTable, statement string, members map[string][]byte) part {
	parameters := elementsOf(members["Parameters"])
	value := func(name string) []byte {
		operand, at := operandOf(statement, name)
		if operand != "?" {
			return []byte(operand)
		}
		number := strings.Count(statement[:at], "?")
		if number >= len(parameters) {
			return nil
		}
		parameter := cursor{text: parameters[number]}
		text, _ := parameter.attribute()
		return text
	}
	position := positionOf(value(known.schema.partitionKey), value(known.schema.sortKey))
	if strings.EqualFold(strings.SplitN(strings.TrimSpace(statement), " ", 2)[0], "select") {
		return part{known, read, position, unitsOfRead(members)}
	}
	size := 0
	for _, parameter := range parameters {
		value := cursor{text: parameter}
		_, bytes := value.attribute()
		size += bytes
	}
	return part{known, write, position, unitsOf(size, writeUnitBytes)}
}

// operandOf returns what comes after a name and `=` or `:` in an expression, and where it begins: a placeholder or `?`,
// or the content of a text in quotation marks.
func operandOf(expression, name string) (string, int) {
	for at := 0; ; {
		found := strings.Index(expression[at:], name)
		if found < 0 || name == "" {
			return "", 0
		}
		at += found + len(name)
		rest := strings.TrimLeft(strings.TrimLeft(expression[at:], `"'`), " ")
		if rest == "" || rest[0] != '=' && rest[0] != ':' {
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

// A batch is the value of RequestItems, UnprocessedItems or UnprocessedKeys: elements by table.
type batch []tableBatch

type tableBatch struct {
	table         string
	before, after []byte // the array of elements, in the value of the table
	elements      [][]byte
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
					begin = options.at
					options.skip()
					end = options.at
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
		text.Write(table.before)
		text.Write(arrayOf(table.elements))
		text.Write(table.after)
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

// replaceMember returns an object with another value of a member, which is added if it is missing.
func replaceMember(object []byte, name string, value []byte) []byte {
	c := cursor{text: object}
	begin, end, separator := 0, 0, ""
	c.members(func(member []byte) {
		separator = ","
		if string(member) == name {
			begin = c.at
			c.skip()
			end = c.at
		}
	})
	if end > 0 {
		return bytes.Join([][]byte{object[:begin], value, object[end:]}, nil)
	}
	inner := bytes.TrimPrefix(bytes.TrimSpace(object), []byte("{"))
	return bytes.Join([][]byte{[]byte(`{"` + name + `":`), value, []byte(separator), inner}, nil)
}
