package rdmaprom_test

import (
	"context"
	"fmt"
	"log"

	"github.com/prometheus/client_golang/prometheus"

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
