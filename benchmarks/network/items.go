package main

import (
	"bytes"
	"math"
)

const (
	writeUnitBytes = 1024
	readUnitBytes  = 4096
)

// A schema has the names of a table's key attributes.
type schema struct {
	partitionKey, sortKey string
}

// An item, or its key, in a request or an answer.
type item struct {
	partitionKey, sortKey []byte
	bytes                 int
}

// itemOf measures an item by DynamoDB's rules: names and values count, base64 counts as the bytes in it.
func itemOf(text []byte, schema schema) item {
	var measured item
	c := cursor{text: text}
	c.members(func(name []byte) {
		value, bytes := c.attribute()
		switch string(name) {
		case schema.partitionKey:
			measured.partitionKey = value
		case schema.sortKey:
			measured.sortKey = value
		}
		measured.bytes += len(name) + bytes
	})
	return measured
}

func (i item) position() position { return positionOf(i.partitionKey, i.sortKey) }

// attribute reads a value like {"S": "text"}, and returns its text, if it is no container, and its size.
func (c *cursor) attribute() (text []byte, size int) {
	c.members(func(kind []byte) {
		switch string(kind) {
		case "S", "N", "B":
			text = c.string()
			size = scalarBytes(kind[0], text)
		case "SS", "NS", "BS":
			c.elements(func() { size += scalarBytes(kind[0], c.string()) })
		case "L":
			size = 3
			c.elements(func() {
				_, bytes := c.attribute()
				size += 1 + bytes
			})
		case "M":
			size = 3
			c.members(func(name []byte) {
				_, bytes := c.attribute()
				size += 1 + len(name) + bytes
			})
		default: // BOOL, NULL
			size = 1
		}
	})
	return text, size
}

func scalarBytes(kind byte, text []byte) int {
	switch kind {
	case 'B':
		return len(bytes.TrimRight(text, "=")) * 3 / 4
	case 'N':
		return len(text)/2 + 1
	default:
		return len(text)
	}
}

// unitsOf rounds a size up to units, of which each item takes at least one.
func unitsOf(bytes, unitBytes int) float64 {
	return math.Max(1, math.Ceil(float64(bytes)/float64(unitBytes)))
}
