package rdmadebug_test

import (
	"context"
	"expvar"
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"

	"github.com/rconn/rdma/compat/rdmadebug"
	"github.com/rconn/rdma/rconn"
)

// A server with the page beside its own.
func Example() {
	monitor := new(rconn.Monitor)
	lc := rconn.ListenConfig{Config: rconn.Config{Monitor: monitor}}
	ln, err := lc.Listen(context.Background(), "tcp", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	defer ln.Close()

	mux := http.NewServeMux()
	mux.Handle("/debug/rdma", &rdmadebug.Handler{Monitor: monitor})
	expvar.Publish("rdma", expvar.Func(rdmadebug.Vars(monitor)))

	// As curl sees it.
	w := httptest.NewRecorder()
	mux.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/debug/rdma", nil))
	fmt.Println(strings.Contains(w.Body.String(), "\nListeners: 1\n"))
	// Output: true
}
