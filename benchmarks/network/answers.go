package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"hash/crc32"
	"net"
	"net/http"
	"strconv"
)

const dynamoDBErrors = "com.amazonaws.dynamodb.v20120810#"

// An answer of the engine, or of the world in its place.
type answer struct {
	status int
	header http.Header
	body   []byte
}

func newAnswer(status int, body any) answer {
	text, err := json.Marshal(body)
	if err != nil {
		panic(err) // of maps and texts of our own
	}
	return answer{status: status, header: http.Header{"Content-Type": {"application/x-amz-json-1.0"}}, body: text}
}

// with returns the answer with another body, for which a client may compare length and checksum.
func (a answer) with(body []byte) answer {
	header := a.header.Clone()
	header.Set("X-Amz-Crc32", strconv.FormatUint(uint64(crc32.ChecksumIEEE(body)), 10))
	return answer{status: a.status, header: header, body: body}
}

// writeTo sends the answer to a client.
func (a answer) writeTo(connection net.Conn) error {
	var head bytes.Buffer
	fmt.Fprintf(&head, "HTTP/1.1 %d %s\r\nContent-Length: %d\r\n", a.status, http.StatusText(a.status), len(a.body))
	a.header.WriteSubset(&head, notForwarded)
	head.WriteString("\r\n")
	response := net.Buffers{head.Bytes(), a.body}
	_, err := response.WriteTo(connection)
	return err
}

type throttlingReason struct {
	Reason   string `json:"reason"`
	Resource string `json:"resource"`
}

func reasonOf(part *part, limit limit) throttlingReason {
	return throttlingReason{Reason: "Table" + part.kind.String() + string(limit), Resource: part.table.capacity.arn}
}

// throttledAnswer is the answer to a request of which nothing was admitted.
func throttledAnswer(part *part, limit limit) answer {
	name, message := "ProvisionedThroughputExceededException", "The level of configured provisioned throughput "+
		"for the table was exceeded. Consider increasing your provisioning level with the UpdateTable API."
	if limit == account {
		name, message = "RequestLimitExceeded", "Throughput exceeds the current throughput limit for your account."
	}
	return newAnswer(http.StatusBadRequest, map[string]any{
		"__type":            dynamoDBErrors + name,
		"message":           message,
		"ThrottlingReasons": []throttlingReason{reasonOf(part, limit)},
	})
}

// cancelledAnswer is the answer to a transaction of which an action was not admitted.
func cancelledAnswer(limits []limit) answer {
	reasons := make([]map[string]string, len(limits))
	codes := "["
	for number, limit := range limits {
		reasons[number] = map[string]string{"Code": "None"}
		if limit != none {
			reasons[number] = map[string]string{
				"Code":    "ThrottlingError",
				"Message": "Throughput exceeds the current capacity of your table or index.",
			}
		}
		if number > 0 {
			codes += ", "
		}
		codes += reasons[number]["Code"]
	}
	codes += "]"
	return newAnswer(http.StatusBadRequest, map[string]any{
		"__type":              dynamoDBErrors + "TransactionCanceledException",
		"Message":             "Transaction cancelled, please refer cancellation reasons for specific reasons " + codes,
		"CancellationReasons": reasons,
	})
}

// throttledStatement is the response for one statement of a BatchExecuteStatement.
func throttledStatement(part *part) []byte {
	return newAnswer(http.StatusOK, map[string]any{
		"TableName": part.table.name,
		"Error": map[string]string{
			"Code":    "ProvisionedThroughputExceeded",
			"Message": "The level of configured provisioned throughput for one or more tables was exceeded.",
		},
	}).body
}

// consumedUnits returns the units of each table in a ConsumedCapacity, which is an object or an array.
func consumedUnits(capacity []byte) map[string]float64 {
	units := map[string]float64{}
	for _, table := range append(elementsOf(capacity), capacity) {
		members := membersOf(table)
		if number, err := strconv.ParseFloat(string(members["CapacityUnits"]), 64); err == nil {
			units[string(textOf(members["TableName"]))] += number
		}
	}
	return units
}

// unitsOfItems returns what a request about one item or one page takes at least, by the items in its answer.
func unitsOfItems(part *part, members map[string][]byte) float64 {
	unitBytes, factor := writeUnitBytes, 1.0
	if part.kind == read {
		unitBytes, factor = readUnitBytes, part.units
	}
	size := 0
	for _, name := range [...]string{"Item", "Attributes"} {
		size += itemOf(members[name], part.table.schema).bytes
	}
	for _, item := range elementsOf(members["Items"]) {
		size += itemOf(item, part.table.schema).bytes
	}
	return unitsOf(size, unitBytes) * factor
}
