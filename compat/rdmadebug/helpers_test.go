package rdmadebug

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/net/html"
	"golang.org/x/net/html/atom"

	"github.com/rconn/rdma/cm"
	"github.com/rconn/rdma/rconn"
	"github.com/rconn/rdma/verbs/verbstest"
)

// world is a server and a client on a fabric, watched by one Monitor.
type world struct {
	server, client *verbstest.Host
	monitor        *rconn.Monitor
	ln             net
	dialer         rconn.Dialer
}

// net is a listener with its address as text.
type net struct {
	*rconn.Listener
	addr string
}

const serverAddr, clientAddr = "10.0.0.2", "10.0.0.1"

func newWorld(t testing.TB, fc verbstest.Config) *world {
	fab := verbstest.NewFabric(fc)
	t.Cleanup(fab.Close)
	w := &world{server: fab.Host("server", serverAddr), client: fab.Host("client", clientAddr), monitor: new(rconn.Monitor)}
	cfg := rconn.Config{Monitor: w.monitor, Linger: -1, SendBuffer: 64 << 10, RecvBuffer: 64 << 10, Credits: 16}
	lc := rconn.ListenConfig{Providers: []cm.Provider{w.server}, Config: cfg}
	ln, err := lc.Listen(context.Background(), "rdma", serverAddr+":0")
	require.NoError(t, err)
	t.Cleanup(func() { ln.Close() })
	w.ln = net{ln.(*rconn.Listener), ln.Addr().String()}
	w.dialer = rconn.Dialer{Providers: []cm.Provider{w.client}, Config: cfg}
	return w
}

func (w *world) handler() *Handler {
	return &Handler{Monitor: w.monitor, Providers: []cm.Provider{w.server}}
}

// pair makes a connection that lives as long as the test.
func (w *world) pair(t testing.TB) (dialed, accepted *rconn.Conn) {
	d, err := w.dialer.Dial("rdma", w.ln.addr)
	require.NoError(t, err)
	t.Cleanup(func() { d.Close() })
	a, err := w.ln.Accept()
	require.NoError(t, err)
	for w.ln.Stats().Handshakes > 0 { // it is over a moment after Accept has it
		runtime.Gosched()
	}
	t.Cleanup(func() { a.Close() })
	return d.(*rconn.Conn), a.(*rconn.Conn)
}

func send(t testing.TB, from, to *rconn.Conn, n int) {
	_, err := from.Write(make([]byte, n))
	require.NoError(t, err)
	_, err = io.ReadFull(to, make([]byte, n))
	require.NoError(t, err)
}

// get asks a handler, with an Accept header.
func get(h http.Handler, target, accept string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(http.MethodGet, target, nil)
	r.Header.Set("Accept", accept)
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

// shown is a section of the page.
type shown struct {
	count string
	rows  []map[string]string // by the column's title
	note  string
}

// parse reads the page as a browser does.
func parse(t testing.TB, text string) map[string]shown {
	t.Helper()
	doc, err := html.Parse(strings.NewReader(text))
	require.NoError(t, err)
	sections := map[string]shown{}
	for n := range doc.Descendants() {
		require.NotEqual(t, atom.Script, n.DataAtom)
		for _, a := range n.Attr {
			require.False(t, strings.HasPrefix(a.Key, "on"), "%s has %s", n.Data, a.Key)
		}
		if n.DataAtom != atom.Section {
			continue
		}
		var s shown
		var title string
		var head []string
		for e := range n.Descendants() {
			switch e.DataAtom {
			case atom.H2:
				title = strings.TrimSpace(e.FirstChild.Data)
			case atom.Span:
				s.count = inner(e)
			case atom.P:
				s.note = inner(e)
			case atom.Th:
				head = append(head, inner(e))
			case atom.Tr:
				if e.Parent.DataAtom == atom.Tbody {
					s.rows = append(s.rows, map[string]string{})
				}
			case atom.Td:
				row := s.rows[len(s.rows)-1]
				row[head[len(row)]] = inner(e)
			}
		}
		sections[title] = s
	}
	return sections
}

func inner(n *html.Node) string {
	var b strings.Builder
	for c := range n.Descendants() {
		if c.Type == html.TextNode {
			b.WriteString(c.Data)
		}
	}
	return strings.TrimSpace(b.String())
}
