package main

import (
	"bufio"
	"net"
	"net/http"
)

// serve answers the requests of every connection, one after the other, by one goroutine. http.Server takes more of the
// processor: it has a second one, which watches the connection for its end. This one knows no `Expect` and no HTTP/2.
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
