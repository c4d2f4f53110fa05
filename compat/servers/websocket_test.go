package servers

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"testing"
	"time"

	coder "github.com/coder/websocket"
	gorilla "github.com/gorilla/websocket"

	"github.com/rconn/rdma/compat"
)

const websocketDoes = "20 clients at once, messages of 0 bytes to 2 MiB as text and binary, ping, close codes from both ends, a client that breaks off"

func TestWebSocketCoder(t *testing.T) {
	row{
		name: "WebSocket, coder", modules: []string{"github.com/coder/websocket"}, does: websocketDoes,
		serve: func(t *testing.T, ln net.Listener) { serveWebSocket(t, ln, coderEcho(t)) },
		use: func(t *testing.T, n *network) {
			tr := compat.Transport(n.Dialer)
			t.Cleanup(tr.CloseIdleConnections)
			together(t, 20, func(i int) error {
				ctx := within(t)
				c, _, err := coder.Dial(ctx, "ws://"+n.addr, &coder.DialOptions{HTTPClient: &http.Client{Transport: tr}})
				if err != nil {
					return err
				}
				defer c.CloseNow()
				c.SetReadLimit(-1)
				for _, size := range websocketSizes(i) {
					want := noise(uint64(size), size)
					if err := c.Write(ctx, coder.MessageBinary, want); err != nil {
						return err
					}
					kind, got, err := c.Read(ctx)
					if err != nil || kind != coder.MessageBinary || !bytes.Equal(got, want) {
						return fmt.Errorf("%v, %d bytes of %d, %v", kind, len(got), size, err)
					}
				}
				switch i % 3 {
				case 0: // the server ends it
					if err := c.Write(ctx, coder.MessageText, []byte("end")); err != nil {
						return err
					}
					_, _, err := c.Read(ctx)
					if coder.CloseStatus(err) != 4001 {
						return fmt.Errorf("end: %w", err)
					}
				case 1:
					alive := c.CloseRead(ctx)
					if err := c.Ping(alive); err != nil {
						return err
					}
					return c.Close(coder.StatusNormalClosure, "")
				}
				return nil // breaks off
			})
		},
	}.run(t)
}

func TestWebSocketGorilla(t *testing.T) {
	row{
		name: "WebSocket, gorilla", modules: []string{"github.com/gorilla/websocket"}, does: websocketDoes,
		serve: func(t *testing.T, ln net.Listener) { serveWebSocket(t, ln, gorillaEcho(t)) },
		use: func(t *testing.T, n *network) {
			dialer := gorilla.Dialer{NetDialContext: n.DialContext}
			together(t, 20, func(i int) error {
				c, _, err := dialer.DialContext(within(t), "ws://"+n.addr, nil)
				if err != nil {
					return err
				}
				defer c.Close()
				pongs := 0
				c.SetPongHandler(func(string) error { pongs++; return nil })
				for _, size := range websocketSizes(i) {
					want := noise(uint64(size), size)
					wrote := make(chan error, 1)
					go func() { // the server sends back what it has while more comes: somebody must read
						wrote <- errors.Join(
							c.WriteControl(gorilla.PingMessage, []byte("alive?"), time.Now().Add(patience)),
							c.WriteMessage(gorilla.BinaryMessage, want))
					}()
					kind, got, err := c.ReadMessage()
					if err = errors.Join(err, <-wrote); err != nil || kind != gorilla.BinaryMessage || !bytes.Equal(got, want) {
						return fmt.Errorf("%v, %d bytes of %d, %w", kind, len(got), size, err)
					}
				}
				if pongs != len(websocketSizes(i)) {
					return fmt.Errorf("%d pongs", pongs)
				}
				want := 4001
				switch i % 3 {
				case 0: // the server ends it
					err = c.WriteMessage(gorilla.TextMessage, []byte("end"))
				case 1:
					want = gorilla.CloseNormalClosure
					err = c.WriteMessage(gorilla.CloseMessage, gorilla.FormatCloseMessage(want, ""))
				case 2:
					return nil // breaks off
				}
				if err != nil {
					return err
				}
				if _, _, err = c.ReadMessage(); !gorilla.IsCloseError(err, want) {
					return fmt.Errorf("want close code %d: %w", want, err)
				}
				return nil
			})
		},
	}.run(t)
}

func websocketSizes(i int) []int {
	if i == 0 {
		return []int{0, 1, 125, 126, 65535, 65536, 2 << 20}
	}
	return []int{0, i, i * 1000, i * 5000}
}

// serveWebSocket is a net/http server whose handler hijacks. It waits for its handlers, which Shutdown does not when they have.
func serveWebSocket(t *testing.T, ln net.Listener, handler http.HandlerFunc) {
	var handlers sync.WaitGroup
	srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		handlers.Add(1)
		defer handlers.Done()
		handler(w, r)
	})}
	served := make(chan error, 1)
	go func() { served <- srv.Serve(ln) }()
	t.Cleanup(func() {
		check(t, srv.Shutdown(within(t)))
		if err := <-served; err != http.ErrServerClosed {
			t.Error(err)
		}
		handlers.Wait()
	})
}

// coderEcho sends messages back. The text "end" ends the connection.
func coderEcho(t *testing.T) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		c, err := coder.Accept(w, r, nil)
		if err != nil {
			t.Error(err)
			return
		}
		defer c.CloseNow()
		c.SetReadLimit(-1)
		for ctx := context.Background(); ; {
			kind, p, err := c.Read(ctx)
			if err != nil {
				return
			}
			if kind == coder.MessageText && string(p) == "end" {
				c.Close(4001, "as you wish")
				return
			}
			if c.Write(ctx, kind, p) != nil {
				return
			}
		}
	}
}

// gorillaEcho does the same, by streams.
func gorillaEcho(t *testing.T) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		c, err := new(gorilla.Upgrader).Upgrade(w, r, nil)
		if err != nil {
			t.Error(err)
			return
		}
		defer c.Close()
		for {
			kind, from, err := c.NextReader()
			if err != nil {
				return
			}
			if kind == gorilla.TextMessage {
				c.WriteMessage(gorilla.CloseMessage, gorilla.FormatCloseMessage(4001, "as you wish"))
				return
			}
			to, err := c.NextWriter(kind)
			if err != nil {
				return
			}
			if _, err := io.Copy(to, from); err != nil || to.Close() != nil {
				return
			}
		}
	}
}
