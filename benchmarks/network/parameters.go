package main

import (
	"bytes"
	_ "embed"
	"encoding/json"
	"fmt"
	"os"
)

//go:embed parameters.json
var publishedParameters []byte

// A quantity is a number with its unit, and where it was published.
type quantity struct {
	Value  float64 `json:"value"`
	Unit   string  `json:"unit"`
	Source string  `json:"source"`
}

// A distribution is log-normal: median and floor in milliseconds. The operation "*" means all others.
type distribution struct {
	Operations []string `json:"operations"`
	Median     float64  `json:"median"`
	Sigma      float64  `json:"sigma"`
	Floor      float64  `json:"floor"`
	Unit       string   `json:"unit"`
	Source     string   `json:"source"`
}

type parameters struct {
	Connection quantity                `json:"connection"`
	DynamoDB   dynamoDBParameters      `json:"dynamodb"`
	S3         map[string]s3Parameters `json:"s3"`
}

type dynamoDBParameters struct {
	Latencies []distribution      `json:"latencies"`
	Body      quantity            `json:"body"`
	Partition partitionParameters `json:"partition"`
	Table     tableParameters     `json:"table"`
}

type partitionParameters struct {
	Write      quantity `json:"write"`
	Read       quantity `json:"read"`
	Burst      quantity `json:"burst"`
	SplitAfter quantity `json:"split_after"`
	Hot        quantity `json:"hot"`
}

func (p partitionParameters) rates() [kinds]float64 {
	return [kinds]float64{p.Write.Value, p.Read.Value}
}

type tableParameters struct {
	NewWrite   quantity `json:"new_write"`
	NewRead    quantity `json:"new_read"`
	Growth     quantity `json:"growth"`
	Window     quantity `json:"window"`
	QuotaWrite quantity `json:"quota_write"`
	QuotaRead  quantity `json:"quota_read"`
}

type s3Parameters struct {
	Latencies []distribution `json:"latencies"`
	Upload    quantity       `json:"upload"`
	Download  quantity       `json:"download"`
	WriteRate quantity       `json:"write_rate"`
	ReadRate  quantity       `json:"read_rate"`
	Prefix    quantity       `json:"prefix"`
}

// loadParameters reads a file, or the published parameters if no file is named.
func loadParameters(file string) (parameters, error) {
	text := publishedParameters
	if file != "" {
		var err error
		if text, err = os.ReadFile(file); err != nil {
			return parameters{}, err
		}
	}
	return parseParameters(text)
}

func parseParameters(text []byte) (parameters, error) {
	var all any
	if err := json.Unmarshal(text, &all); err != nil {
		return parameters{}, err
	}
	if err := refuseUnsourced("parameters", all); err != nil {
		return parameters{}, err
	}
	var parsed parameters
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.DisallowUnknownFields()
	return parsed, decoder.Decode(&parsed)
}

// refuseUnsourced fails for an object that has numbers without their unit and their source.
func refuseUnsourced(path string, value any) error {
	switch value := value.(type) {
	case []any:
		for number, element := range value {
			if err := refuseUnsourced(fmt.Sprintf("%s[%d]", path, number), element); err != nil {
				return err
			}
		}
	case map[string]any:
		for name, member := range value {
			if _, isNumber := member.(float64); isNumber && (value["unit"] == nil || value["source"] == nil) {
				return fmt.Errorf("%s.%s: a number needs a unit and a source", path, name)
			}
			if err := refuseUnsourced(path+"."+name, member); err != nil {
				return err
			}
		}
	}
	return nil
}
