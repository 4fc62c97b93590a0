// Network is an AWS-shaped world for benchmarks: a DynamoDB, before an engine, and an S3, in memory. Both answer as
// late as AWS's services, and throttle as they do. The numbers, each with its source, are in parameters.json.
//
// It prints its ports as one line of JSON, and ends when its standard input closes.
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/signal"
	"runtime"
	"sort"
	"strings"
	"syscall"
)

type options struct {
	engine     string
	listen     map[string]*string // by service, and "control"
	seed       int64
	parameters string
	scale      float64
	s3         string
	partitions int
	isNew      bool
	isTraced   bool
}

func main() {
	o := options{listen: map[string]*string{}}
	flag.StringVar(&o.engine, "dynamodb", "", "HOST:PORT of the DynamoDB engine, which must not verify signatures")
	for _, service := range [...]string{dynamoDBService, s3Service, "control"} {
		o.listen[service] = flag.String("listen-"+service, "127.0.0.1:0", "HOST:PORT; port 0 is any free one")
	}
	flag.Int64Var(&o.seed, "seed", 1, "of the latencies")
	flag.StringVar(&o.parameters, "parameters", "", "a file in place of the published parameters.json")
	flag.Float64Var(&o.scale, "scale", 1, "a factor on all latencies")
	flag.StringVar(&o.s3, "s3", "standard", "the S3 of the parameters: standard, express")
	flag.IntVar(&o.partitions, "partitions", 0, "of each table at first; 0: as many as its limits need")
	flag.BoolVar(&o.isNew, "new-table", false, "tables are new ones on demand, without burst")
	flag.BoolVar(&o.isTraced, "trace", false, "keep every request to DynamoDB until the next reset, for GET /trace")
	flag.Parse()
	if err := run(o); err != nil {
		fmt.Fprintln(os.Stderr, "network:", err)
		os.Exit(1)
	}
}

func run(o options) error {
	// A second processor makes nothing faster here, and to hand requests from one to the other takes time of both.
	runtime.GOMAXPROCS(1)
	handlers, err := newWorld(o)
	if err != nil {
		return err
	}
	ports := map[string]int{}
	failures := make(chan error, len(handlers))
	for name, handler := range handlers {
		listener, err := net.Listen("tcp", *o.listen[name])
		if err != nil {
			return err
		}
		ports[name] = listener.Addr().(*net.TCPAddr).Port
		serve := handler
		go func() { failures <- serve(listener) }()
	}
	if err := json.NewEncoder(os.Stdout).Encode(ports); err != nil {
		return err
	}
	select {
	case err := <-failures:
		return err
	case <-inputClosed():
	case <-terminated():
	}
	return nil
}

// newWorld returns what serves both services and the control port.
func newWorld(o options) (map[string]func(net.Listener) error, error) {
	parameters, err := loadParameters(o.parameters)
	if err != nil {
		return nil, err
	}
	s3Parameters, ok := parameters.S3[o.s3]
	if !ok {
		return nil, fmt.Errorf("no S3 is named %q; the parameters have %s", o.s3, namesOf(parameters.S3))
	}
	statistics, trace := newStatistics(), newTrace(o.isTraced)
	factor := scaleOf(o.scale)
	connection := parameters.Connection.Value
	dynamoDB := &dynamoDB{
		parameters: parameters.DynamoDB,
		connection: connection,
		latencies:  newLatencies(parameters.DynamoDB.Latencies, o.seed, factor),
		statistics: statistics,
		trace:      trace,
		engine:     &engine{address: o.engine},
		partitions: o.partitions,
		isNew:      o.isNew,
		tables:     map[string]*table{},
	}
	s3 := newS3(s3Parameters, connection, newLatencies(s3Parameters.Latencies, o.seed, factor), statistics)
	return map[string]func(net.Listener) error{
		dynamoDBService: func(l net.Listener) error { return serve(l, dynamoDB.handle) },
		s3Service:       (&http.Server{Handler: s3, ConnContext: withConnection}).Serve,
		"control":       (&http.Server{Handler: control(statistics, trace, factor, dynamoDB.describe)}).Serve,
	}, nil
}

func namesOf(profiles map[string]s3Parameters) string {
	var names []string
	for name := range profiles {
		names = append(names, name)
	}
	sort.Strings(names)
	return strings.Join(names, ", ")
}

// inputClosed is closed when the process that started this one has ended, or wants this one to.
func inputClosed() <-chan struct{} {
	closed := make(chan struct{})
	go func() {
		io.Copy(io.Discard, os.Stdin)
		close(closed)
	}()
	return closed
}

func terminated() <-chan os.Signal {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT)
	return signals
}
