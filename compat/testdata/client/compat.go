// Client prints what is at a URL.
package main

import (
	"io"
	"log"
	"net/http"
	"os"

	"github.com/rconn/rdma/compat"
)

func main() {
	http.DefaultTransport = compat.Transport(nil)
	resp, err := http.Get(os.Args[1])
	if err != nil {
		log.Fatal(err)
	}
	defer resp.Body.Close()
	io.Copy(os.Stdout, resp.Body)
}
