// Server serves the folder in which it is started.
package main

import (
	"flag"
	"log"
	"net/http"

	"github.com/rconn/rdma/compat"
)

func main() {
	addr := flag.String("addr", ":8080", "serve on this `address`")
	flag.Parse()
	http.Handle("/", http.FileServer(http.Dir(".")))
	log.Fatal(compat.ListenAndServe(*addr, nil))
}
