package servers

import (
	"bytes"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"testing"
)

func TestTLS(t *testing.T) {
	ca, other := newAuthority(t, 1), newAuthority(t, 2)
	row{
		name: "crypto/tls", does: "client certificates, also none and a stranger's; 8 connections at once with 1 MiB both ways at once, CloseWrite, resumption",
		serve: func(t *testing.T, ln net.Listener) {
			ln = tls.NewListener(ln, &tls.Config{
				Certificates: []tls.Certificate{ca.issue(t, "server")}, ClientCAs: ca.pool, ClientAuth: tls.RequireAndVerifyClientCert,
			})
			serveConns(t, ln, func(c net.Conn) {
				defer c.Close()
				tc := c.(*tls.Conn)
				if tc.Handshake() != nil {
					return // refused, which the client checks
				}
				// The client's name first, then what it sends, to the end of that.
				fmt.Fprintln(c, tc.ConnectionState().PeerCertificates[0].Subject.CommonName)
				io.Copy(c, c)
				tc.CloseWrite()
			})
		},
		use: func(t *testing.T, n *network) {
			config := func(certs ...tls.Certificate) *tls.Config {
				return &tls.Config{RootCAs: ca.pool, ServerName: "server", Certificates: certs}
			}
			// With TLS 1.3 a client learns that it was refused when it reads.
			for _, certs := range [][]tls.Certificate{nil, {other.issue(t, "stranger")}} {
				_, _, err := tlsEcho(n, config(certs...), nil)
				var alert *net.OpError
				if !errors.As(err, &alert) || alert.Op != "remote error" {
					t.Errorf("not refused: %v", err)
				}
			}
			wrong := config(ca.issue(t, "gopher"))
			wrong.RootCAs = other.pool
			var unknown *tls.CertificateVerificationError
			if _, _, err := tlsEcho(n, wrong, nil); !errors.As(err, &unknown) {
				t.Errorf("the server was not refused: %v", err)
			}

			known := config(ca.issue(t, "gopher"))
			known.ClientSessionCache = tls.NewLRUClientSessionCache(16)
			together(t, 8, func(i int) error {
				want := noise(uint64(i), 1<<20+i)
				name := fmt.Sprint("gopher ", i)
				got, _, err := tlsEcho(n, config(ca.issue(t, name)), want)
				if err == nil && !bytes.Equal(got, append([]byte(name+"\n"), want...)) {
					err = fmt.Errorf("%d bytes of %d", len(got), len(want))
				}
				return err
			})
			for i := range 3 {
				_, resumed, err := tlsEcho(n, known, []byte("hello"))
				check(t, err)
				if resumed != (i > 0) {
					t.Errorf("connection %d: resumed: %v", i, resumed)
				}
			}
		},
	}.run(t)
}

// tlsEcho returns all that the server sends while it sends body.
func tlsEcho(n *network, config *tls.Config, body []byte) (got []byte, resumed bool, err error) {
	raw, err := n.Dial("tcp", n.addr)
	if err != nil {
		return nil, false, err
	}
	c := tls.Client(raw, config)
	defer c.Close()
	if err := c.Handshake(); err != nil {
		return nil, false, err
	}
	var wg sync.WaitGroup
	var wrote error
	wg.Go(func() {
		_, err := c.Write(body)
		wrote = errors.Join(err, c.CloseWrite())
	})
	got, err = io.ReadAll(c)
	wg.Wait()
	if err == nil {
		err = wrote
	}
	return got, c.ConnectionState().DidResume, err
}
