package compat_test

import (
	"context"
	"flag"
	"fmt"
	"io"
	"log"
	"log/slog"
	"net"
	"net/http"
	"net/rpc"
	"time"

	"github.com/rconn/rdma/compat"
	"github.com/rconn/rdma/rconn"
)

// quiet keeps the line about what was taken out of the examples' output.
var quiet = rconn.Dialer{Config: rconn.Config{Logger: slog.New(slog.DiscardHandler)}}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

// A net/http server has clients with RDMA and without.
func Example() {
	ln, err := compat.Listen("tcp", "127.0.0.1:0") // was net.Listen
	check(err)
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintln(w, "hello,", r.URL.Path[1:])
	})}
	go server.Serve(ln)
	defer server.Close()

	for name, transport := range map[string]*http.Transport{
		"gopher": compat.Transport(&compat.Dialer{RDMA: quiet}),
		"world":  new(http.Transport),
	} {
		resp, err := (&http.Client{Transport: transport}).Get("http://" + ln.Addr().String() + "/" + name)
		check(err)
		body, err := io.ReadAll(resp.Body)
		check(err)
		resp.Body.Close()
		fmt.Print(string(body))
	}
	// Unordered output:
	// hello, gopher
	// hello, world
}

// All of net/http's clients in a program: http.Get, http.Post, http.Client{}.
func ExampleTransport() {
	http.DefaultTransport = compat.Transport(nil)
}

// The lines of a program that is a net/http server and nothing else.
func ExampleListenAndServe() {
	http.Handle("/", http.FileServer(http.Dir(".")))
	log.Fatal(compat.ListenAndServe(":8080", nil)) // was http.ListenAndServe
}

// Which connection is which. A server that speaks first has its word after ListenConfig.Silence.
func ExampleListenConfig() {
	lc := compat.ListenConfig{
		Silence: 50 * time.Millisecond,
		RDMA:    rconn.ListenConfig{Config: rconn.Config{RecvBuffer: 1 << 20, Logger: quiet.Config.Logger}},
	}
	ln, err := lc.Listen(context.Background(), "tcp", "127.0.0.1:0")
	check(err)
	defer ln.Close()
	go func() {
		c, err := net.Dial("tcp", ln.Addr().String())
		check(err)
		io.Copy(io.Discard, c)
		c.Close()
	}()

	c, err := ln.Accept()
	check(err)
	defer c.Close()
	switch c := c.(type) {
	case *rconn.Conn:
		fmt.Println("RDMA:", c.Info().Device)
	case *net.TCPConn:
		fmt.Println("plain TCP")
	}
	fmt.Fprintln(c, "220 ready")
	// Output: plain TCP
}

// A policy from the command line.
func ExamplePolicy() {
	flags := flag.NewFlagSet("program", flag.ContinueOnError)
	var d compat.Dialer
	flags.TextVar(&d.Policy, "rdma", compat.Prefer, "prefer, require or tcp-only")
	check(flags.Parse([]string{"-rdma", "require"}))
	fmt.Println(d.Policy)
	// Output: require
}

// What takes a function that dials a network's address.
func ExampleDialer_DialContext() {
	d := &compat.Dialer{Timeout: 10 * time.Second}
	var dial func(ctx context.Context, network, address string) (net.Conn, error) = d.DialContext
	_ = dial

	// github.com/redis/go-redis:
	//	redis.NewClient(&redis.Options{Addr: "host:6379", Dialer: d.DialContext})
	//
	// github.com/jackc/pgx; as a database/sql driver by stdlib.OpenDB(*config):
	//	config, err := pgx.ParseConfig("postgres://user@host/db")
	//	config.DialFunc = d.DialContext
	//	db := stdlib.OpenDB(*config)
	//
	// github.com/gorilla/websocket:
	//	websocket.Dialer{NetDialContext: d.DialContext}
	//
	// github.com/coder/websocket:
	//	websocket.Dial(ctx, url, &websocket.DialOptions{HTTPClient: &http.Client{Transport: compat.Transport(d)}})
	//
	// go.mongodb.org/mongo-driver takes d itself:
	//	options.Client().SetDialer(d)
}

// What takes a function without a network.
func ExampleDialer_DialAddr() {
	d := &compat.Dialer{Timeout: 10 * time.Second}
	var dial func(ctx context.Context, address string) (net.Conn, error) = d.DialAddr
	_ = dial

	// google.golang.org/grpc; the server's side is server.Serve(ln) with a listener of compat.Listen:
	//	grpc.NewClient("dns:///host:50051", grpc.WithContextDialer(d.DialAddr), grpc.WithTransportCredentials(creds))
	//
	// github.com/go-sql-driver/mysql, for DSNs such as "user@rdma(host:3306)/db":
	//	mysql.RegisterDialContext("rdma", d.DialAddr)
}

// What takes a dialer with Dial, or Dial and DialTimeout.
func ExampleDialer_DialTimeout() {
	d := &compat.Dialer{Timeout: 10 * time.Second}
	var dialer interface {
		Dial(network, address string) (net.Conn, error)
		DialTimeout(network, address string, timeout time.Duration) (net.Conn, error)
	} = d
	_ = dialer

	// github.com/lib/pq:
	//	connector, err := pq.NewConnector("postgres://user@host/db")
	//	connector.Dialer(d)
	//	db := sql.OpenDB(connector)
	//
	// github.com/nats-io/nats.go:
	//	nats.Connect("host:4222", nats.SetCustomDialer(d))
	//
	// golang.org/x/crypto/ssh:
	//	c, err := d.Dial("tcp", "host:22")
	//	conn, channels, requests, err := ssh.NewClientConn(c, "host:22", config)
	//	client := ssh.NewClient(conn, channels, requests)
}

// Arith is what is called.
type Arith struct{}

// Double doubles.
func (Arith) Double(n int, result *int) error {
	*result = 2 * n
	return nil
}

// Net/rpc: rpc.Accept takes the listener, rpc.NewClient a connection.
func ExampleDialer_netRPC() {
	ln, err := compat.Listen("tcp", "127.0.0.1:0") // was net.Listen
	check(err)
	server := rpc.NewServer()
	check(server.Register(Arith{}))
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			go server.ServeConn(c)
		}
	}()
	defer ln.Close()

	d := compat.Dialer{RDMA: quiet}
	c, err := d.Dial("tcp", ln.Addr().String()) // was rpc.Dial
	check(err)
	client := rpc.NewClient(c)
	defer client.Close()
	var result int
	check(client.Call("Arith.Double", 21, &result))
	fmt.Println(result)
	// Output: 42
}
