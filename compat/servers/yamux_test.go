package servers

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"testing"

	"github.com/hashicorp/yamux"
)

func yamuxConfig() *yamux.Config {
	c := yamux.DefaultConfig()
	c.LogOutput = io.Discard
	return c
}

func TestYamux(t *testing.T) {
	row{
		name: "yamux", modules: []string{"github.com/hashicorp/yamux"},
		does: "50 streams at once on one connection, opened from both ends, to 1 MiB each way, half-close, ping, GoAway, an end under way",
		serve: func(t *testing.T, ln net.Listener) {
			serveConns(t, ln, func(c net.Conn) {
				s, err := yamux.Server(c, yamuxConfig())
				if err != nil {
					t.Error(err)
					return
				}
				defer s.Close()
				for {
					stream, err := s.AcceptStream()
					if err != nil {
						return
					}
					go serveYamux(s, stream)
				}
			})
		},
		use: func(t *testing.T, n *network) {
			c, err := n.Dial("tcp", n.addr)
			check(t, err)
			s, err := yamux.Client(c, yamuxConfig())
			check(t, err)
			defer s.Close()
			together(t, 50, func(i int) error { return yamuxStream(s, i) })
			if rtt, err := s.Ping(); err != nil || rtt <= 0 {
				t.Error(rtt, err)
			}
			stays, err := s.OpenStream()
			check(t, err)
			_, err = stays.Write([]byte("E"))
			check(t, err)
			check(t, s.GoAway())
			check(t, yamuxStream(s, 1)) // that we take no more is no matter for the server
			check(t, s.Close())
			if _, err := stays.Read(make([]byte, 1)); err == nil {
				t.Error("the stream outlived its connection")
			}
			if _, err := s.OpenStream(); !errors.Is(err, yamux.ErrSessionShutdown) {
				t.Error(err)
			}
		},
	}.run(t)
}

// serveYamux serves a stream by its first byte: E sends back what comes, B does so on a stream that it opens.
func serveYamux(s *yamux.Session, stream *yamux.Stream) {
	defer stream.Close()
	kind := make([]byte, 1)
	if _, err := io.ReadFull(stream, kind); err != nil {
		return
	}
	to := stream
	if kind[0] == 'B' {
		var err error
		if to, err = s.OpenStream(); err != nil {
			return
		}
		defer to.Close()
	}
	io.Copy(to, stream)
}

func yamuxStream(s *yamux.Session, i int) error {
	kind := []byte("E")
	if i == 0 {
		kind = []byte("B")
	}
	want := noise(uint64(i), 20_000*(i+1))
	stream, err := s.OpenStream()
	if err != nil {
		return err
	}
	defer stream.Close()
	wrote := make(chan error, 1)
	go func() {
		_, err := stream.Write(append(kind, want...))
		wrote <- errors.Join(err, stream.Close()) // of the direction: what comes is still read
	}()
	from := stream
	if kind[0] == 'B' {
		if from, err = s.AcceptStream(); err != nil {
			return err
		}
		defer from.Close()
	}
	got, err := io.ReadAll(from)
	if err = errors.Join(err, <-wrote); err != nil || !bytes.Equal(got, want) {
		return fmt.Errorf("%d bytes of %d, %w", len(got), len(want), err)
	}
	return nil
}
