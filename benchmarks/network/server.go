package main

import (
	"bufio"
	"net"
	"net/http"
)

// serve answers the requests of every connection, one after the other. It takes two thirds of the processor time of
// http.Server, which watches each connection for its end while a request is answered. It knows no `Expect` and no HTTP/2.
func serve(listener net.Listener, handle func(r *http.Request, isFirst bool) (answer, error)) error {
	for {
		connection, err := listener.Accept()
		if err != nil {
			return err
		}
		go serveConnection(connection, handle)
	}
}

func serveConnection(connection net.Conn, handle func(r *http.Request, isFirst bool) (answer, error)) {
	defer connection.Close()
	reader := bufio.NewReader(connection)
	for isFirst := true; ; isFirst = false {
		request, err := http.ReadRequest(reader)
		if err != nil {
			return // the client has closed the connection
		}
		a, err := handle(request, isFirst)
		if err != nil || a.writeTo(connection) != nil || request.Close {
			return
		}
	}
}
