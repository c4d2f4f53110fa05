package servers

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"net/rpc"
	"net/rpc/jsonrpc"
	"testing"
)

// Arith is what is called.
type Arith struct{}

// Div divides.
func (Arith) Div(by [2]int, result *int) error {
	if by[1] == 0 {
		return errors.New("divided by zero")
	}
	*result = by[0] / by[1]
	return nil
}

// Reverse returns what it is given, from its end.
func (Arith) Reverse(p []byte, result *[]byte) error {
	*result = reversed(p)
	return nil
}

func reversed(p []byte) []byte {
	q := make([]byte, len(p))
	for i := range p {
		q[len(p)-1-i] = p[i]
	}
	return q
}

func TestNetRPC(t *testing.T) {
	row{
		name: "net/rpc", does: "gob and JSON codecs, 4 clients with 200 calls under way each, errors of the server, 1 MiB each way, calls after Close",
		serve: func(t *testing.T, ln net.Listener) {
			server := rpc.NewServer()
			check(t, server.Register(Arith{}))
			serveConns(t, ln, func(c net.Conn) {
				first := make([]byte, 1)
				if _, err := c.Read(first); err != nil {
					c.Close()
				} else if first[0] == 'J' {
					server.ServeCodec(jsonrpc.NewServerCodec(c))
				} else {
					server.ServeConn(c)
				}
			})
		},
		use: func(t *testing.T, n *network) {
			together(t, 4, func(i int) error {
				c, err := n.Dial("tcp", n.addr)
				if err != nil {
					return err
				}
				codec := "GJ"[i%2]
				if _, err := c.Write([]byte{codec}); err != nil {
					return err
				}
				if codec == 'J' {
					return callArith(jsonrpc.NewClient(c))
				}
				return callArith(rpc.NewClient(c))
			})
		},
	}.run(t)
}

func callArith(client *rpc.Client) error {
	defer client.Close()
	done := make(chan *rpc.Call, 200)
	for i := range cap(done) {
		client.Go("Arith.Div", [2]int{i * 7, i % 10}, new(int), done)
	}
	for range cap(done) {
		call := <-done
		by := call.Args.([2]int)
		switch {
		case by[1] == 0:
			if call.Error != rpc.ServerError("divided by zero") {
				return fmt.Errorf("%v: %w", by, call.Error)
			}
		case call.Error != nil || *call.Reply.(*int) != by[0]/by[1]:
			return fmt.Errorf("%v: %v, %w", by, *call.Reply.(*int), call.Error)
		}
	}
	want, got := noise(3, 1<<20), []byte(nil)
	if err := client.Call("Arith.Reverse", want, &got); err != nil || !bytes.Equal(reversed(got), want) {
		return fmt.Errorf("%d bytes, %w", len(got), err)
	}
	if err := client.Call("Arith.None", 0, new(int)); err == nil {
		return errors.New("what does not exist was called")
	}
	if err := client.Close(); err != nil {
		return err
	}
	if err := client.Call("Arith.Div", [2]int{1, 1}, new(int)); err != rpc.ErrShutdown {
		return fmt.Errorf("after Close: %w", err)
	}
	return nil
}
