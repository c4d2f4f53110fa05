package rdmadebug

import (
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/rconn/rdma"
	"github.com/rconn/rdma/cm"
	"github.com/rconn/rdma/compat"
	"github.com/rconn/rdma/rconn"
)

// A server of package compat shows its page to a client on the software device, who sees its own connection, and to one of plain TCP, who does
// not.
func TestServerOfCompat(t *testing.T) {
	quiet := slog.New(slog.DiscardHandler)
	providers := []cm.Provider{rdma.Software(rdma.SoftwareConfig{Logger: quiet})}
	monitor := new(rconn.Monitor)
	lc := compat.ListenConfig{RDMA: rconn.ListenConfig{Providers: providers, Config: rconn.Config{Monitor: monitor, Logger: quiet}}}
	ln, err := lc.Listen(context.Background(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	srv := &http.Server{Handler: &Handler{Monitor: monitor, Providers: providers}}
	go srv.Serve(ln)
	defer srv.Close()

	type document struct {
		Conns struct {
			Rows []struct{ State, Remote, Device string }
		}
		Listeners struct {
			Rows []struct{ Addr string }
		}
	}
	ask := func(policy compat.Policy) (doc document) {
		d := compat.Dialer{Policy: policy, RDMA: rconn.Dialer{Providers: providers, Config: rconn.Config{Logger: quiet}}}
		tr := &http.Transport{DialContext: d.DialContext}
		defer tr.CloseIdleConnections()
		resp, err := (&http.Client{Transport: tr}).Get("http://" + ln.Addr().String() + "/?format=json")
		require.NoError(t, err)
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		require.NoError(t, err)
		require.NoError(t, json.Unmarshal(body, &doc))
		return doc
	}
	doc := ask(compat.TCPOnly)
	require.Empty(t, doc.Conns.Rows)
	require.Len(t, doc.Listeners.Rows, 1)
	require.Equal(t, ln.Addr().String(), doc.Listeners.Rows[0].Addr)
	doc = ask(compat.Require)
	require.Len(t, doc.Conns.Rows, 1)
	require.Equal(t, "open", doc.Conns.Rows[0].State)
	require.Equal(t, "software0", doc.Conns.Rows[0].Device)

	require.NoError(t, srv.Close())
	s := monitor.Snapshot()
	require.Empty(t, s.Listeners)
	require.EqualValues(t, 1, s.Totals[0].Opened)
	require.Positive(t, s.Totals[0].BytesSent)
}
