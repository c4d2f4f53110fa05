package rdmaprom_test

import (
	"context"
	"expvar"
	"fmt"
	"log"
	"net/http"
	"os"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/rconn/rdma/compat/rdmadebug"
	"github.com/rconn/rdma/compat/rdmaprom"
	"github.com/rconn/rdma/rconn"
)

// A server whose numbers are collected.
func Example() {
	monitor := new(rconn.Monitor)
	lc := rconn.ListenConfig{Config: rconn.Config{Monitor: monitor}}
	ln, err := lc.Listen(context.Background(), "tcp", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	defer ln.Close()

	registry := prometheus.NewRegistry()
	registry.MustRegister(&rdmaprom.Collector{Monitor: monitor})

	families, err := registry.Gather() // as promhttp does
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(families[0].GetName(), families[0].GetMetric()[0].GetCounter().GetValue())
	// Output: rdma_listener_accepted_total 0
}

// All views of one process, as README.md has them.
func Example_views() {
	monitor := new(rconn.Monitor) // named in rconn.Config.Monitor of what is to be seen

	http.Handle("/debug/rdma", &rdmadebug.Handler{Monitor: monitor})
	expvar.Publish("rdma", expvar.Func(rdmadebug.Vars(monitor)))
	prometheus.MustRegister(&rdmaprom.Collector{Monitor: monitor})
}

// The code of README.md is that of Example_views, which compiles.
func TestCodeInREADME(t *testing.T) {
	readme, err := os.ReadFile("../../README.md")
	require.NoError(t, err)
	source, err := os.ReadFile("example_test.go")
	require.NoError(t, err)
	_, block, found := strings.Cut(string(readme), "```go\nmonitor :=")
	require.True(t, found)
	block, _, _ = strings.Cut("monitor :="+block, "```")
	_, body, found := strings.Cut(string(source), "func Example_views() {\n")
	require.True(t, found)
	body, _, _ = strings.Cut(body, "\n}\n")
	require.Equal(t, strings.ReplaceAll(body, "\t", "")+"\n", block)
}
