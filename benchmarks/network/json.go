package main

import "bytes"

// A cursor reads JSON without decoding it, so that megabytes of base64 cost no more than to find the quotation mark at
// their end. It trusts the text, which the engine checks: on broken text it ends early, with values that are empty.
type cursor struct {
	text   []byte
	offset int
}

// members calls `visit` with the name of each member of the object that comes next. What `visit` does not read is
// skipped.
func (c *cursor) members(visit func(name []byte)) {
	if !c.read('{') {
		c.skip()
		return
	}
	for c.peek() == '"' {
		name := c.string()
		c.read(':')
		begin := c.offset
		if visit(name); c.offset == begin {
			c.skip()
		}
		c.read(',')
	}
	c.read('}')
}

// elements calls `visit` at each element of the array that comes next.
func (c *cursor) elements(visit func()) {
	if !c.read('[') {
		c.skip()
		return
	}
	for c.peek() != ']' && c.peek() != 0 {
		begin := c.offset
		if visit(); c.offset == begin {
			c.skip()
		}
		c.read(',')
	}
	c.read(']')
}

// string returns the string that comes next, with its escapes.
func (c *cursor) string() []byte {
	if !c.read('"') {
		c.skip()
		return nil
	}
	begin := c.offset
	for {
		length := bytes.IndexByte(c.text[c.offset:], '"')
		if length < 0 {
			c.offset = len(c.text)
			return nil
		}
		c.offset += length + 1
		if !endsInEscape(c.text[begin : c.offset-1]) {
			return c.text[begin : c.offset-1]
		}
	}
}

func endsInEscape(text []byte) bool {
	backslashes := len(text) - len(bytes.TrimRight(text, `\`))
	return backslashes%2 == 1
}

// skip returns the text of the value that comes next.
func (c *cursor) skip() []byte {
	next, begin := c.peek(), c.offset
	switch next {
	case '"':
		c.string()
	case '{':
		c.members(func([]byte) {})
	case '[':
		c.elements(func() {})
	default:
		length := bytes.IndexAny(c.text[c.offset:], ",]} \t\r\n")
		if length <= 0 {
			c.offset = len(c.text) // the end, or broken text
		} else {
			c.offset += length
		}
	}
	return c.text[begin:c.offset]
}

// peek returns the next byte that is no white space, or 0 at the end.
func (c *cursor) peek() byte {
	for ; c.offset < len(c.text); c.offset++ {
		if next := c.text[c.offset]; next != ' ' && next != '\n' && next != '\t' && next != '\r' {
			return next
		}
	}
	return 0
}

func (c *cursor) read(expected byte) bool {
	if c.peek() != expected {
		return false
	}
	c.offset++
	return true
}

// membersOf returns the members of an object, by their names.
func membersOf(text []byte) map[string][]byte {
	values := map[string][]byte{}
	c := cursor{text: text}
	c.members(func(name []byte) { values[string(name)] = c.skip() })
	return values
}

// textOf returns the content of a string.
func textOf(value []byte) []byte {
	c := cursor{text: value}
	return c.string()
}

// elementsOf returns the elements of an array.
func elementsOf(text []byte) [][]byte {
	var values [][]byte
	c := cursor{text: text}
	c.elements(func() { values = append(values, c.skip()) })
	return values
}
