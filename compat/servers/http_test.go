package servers

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rconn/rdma/compat"
)

const httpDoes = "64 requests at once, 4 MiB each way, an echo in both directions at once, ranges, lines that arrive one by one, " +
	"a client that leaves, Expect: 100-continue, trailers, Shutdown"

func TestHTTP1(t *testing.T) {
	httpRow("net/http 1.1", httpDoes+"; bodies that end with the connection", func(*http.Protocols) {}, nil).run(t)
}

func TestH2C(t *testing.T) {
	httpRow("net/http h2c", httpDoes, func(p *http.Protocols) { p.SetUnencryptedHTTP2(true) }, nil).run(t)
}

func TestHTTP2TLS(t *testing.T) {
	httpRow("net/http 2, TLS", httpDoes, func(p *http.Protocols) { p.SetHTTP2(true) }, newAuthority(t, 1)).run(t)
}

// httpRow is net/http with one protocol, HTTP/1.1 if set chooses none.
func httpRow(name, does string, set func(*http.Protocols), ca *authority) row {
	p := new(http.Protocols)
	set(p)
	major := 2
	if *p == (http.Protocols{}) {
		p.SetHTTP1(true)
		major = 1
	}
	return row{
		name: name, does: does,
		serve: func(t *testing.T, ln net.Listener) {
			srv := &http.Server{Handler: newSite(), Protocols: p}
			served := make(chan error, 1)
			if ca == nil {
				go func() { served <- srv.Serve(ln) }()
			} else {
				srv.TLSConfig = &tls.Config{Certificates: []tls.Certificate{ca.issue(t, "server")}}
				go func() { served <- srv.ServeTLS(ln, "", "") }()
			}
			t.Cleanup(func() {
				check(t, srv.Shutdown(within(t)))
				if err := <-served; err != http.ErrServerClosed {
					t.Error(err)
				}
			})
		},
		use: func(t *testing.T, n *network) {
			tr := compat.Transport(n.Dialer)
			tr.Protocols = p
			s := visitor{url: "http://" + n.addr, client: &http.Client{Transport: tr, Timeout: patience}, major: major}
			if ca != nil {
				s.url = "https://" + n.addr
				tr.TLSClientConfig = &tls.Config{RootCAs: ca.pool, ServerName: "server"}
			}
			t.Cleanup(tr.CloseIdleConnections)
			s.visit(t)
		},
	}
}

// site is a server's handler.
type site struct {
	file        []byte
	begun, gone chan struct{} // a client came to /hang, and left

	mu   sync.Mutex
	acks map[string]chan struct{}
}

const fileSize = 4 << 20

func newSite() http.Handler {
	s := &site{file: noise(1, fileSize), acks: make(map[string]chan struct{}), gone: make(chan struct{}, 1), begun: make(chan struct{}, 1)}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /file", func(w http.ResponseWriter, r *http.Request) {
		http.ServeContent(w, r, "file", time.Time{}, bytes.NewReader(s.file))
	})
	mux.HandleFunc("GET /noise", func(w http.ResponseWriter, r *http.Request) {
		n, _ := strconv.Atoi(r.FormValue("n"))
		w.Write(noise(uint64(n), n))
	})
	mux.HandleFunc("POST /hash", func(w http.ResponseWriter, r *http.Request) {
		h := sha256.New()
		n, err := io.Copy(h, r.Body)
		fmt.Fprintf(w, "%d %v %x %s", n, err, h.Sum(nil), r.Trailer.Get("Sum"))
	})
	mux.HandleFunc("POST /echo", func(w http.ResponseWriter, r *http.Request) {
		http.NewResponseController(w).EnableFullDuplex()
		w.Header().Set("Trailer", "Sum")
		h := sha256.New()
		buf := make([]byte, 10_000)
		for {
			n, err := r.Body.Read(buf)
			h.Write(buf[:n])
			w.Write(buf[:n])
			http.NewResponseController(w).Flush()
			if err != nil {
				break
			}
		}
		w.Header().Set("Sum", fmt.Sprintf("%x", h.Sum(nil)))
	})
	mux.HandleFunc("GET /lines", s.lines)
	mux.HandleFunc("POST /seen", func(w http.ResponseWriter, r *http.Request) { s.ack(r.FormValue("id")) <- struct{}{} })
	mux.HandleFunc("GET /hang", func(w http.ResponseWriter, r *http.Request) {
		s.begun <- struct{}{}
		<-r.Context().Done()
		s.gone <- struct{}{}
	})
	mux.HandleFunc("GET /begun", func(w http.ResponseWriter, r *http.Request) { <-s.begun })
	mux.HandleFunc("GET /gone", func(w http.ResponseWriter, r *http.Request) { <-s.gone })
	mux.HandleFunc("POST /refuse", func(w http.ResponseWriter, r *http.Request) {
		http.Error(w, "too much", http.StatusRequestEntityTooLarge)
	})
	mux.HandleFunc("GET /hijack", func(w http.ResponseWriter, r *http.Request) {
		c, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			return
		}
		defer c.Close()
		fmt.Fprint(c, "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n")
		c.Write(s.file)
	})
	return mux
}

func (s *site) ack(id string) chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.acks[id] == nil {
		s.acks[id] = make(chan struct{})
	}
	return s.acks[id]
}

// lines sends the next line when the last one was seen.
func (s *site) lines(w http.ResponseWriter, r *http.Request) {
	for i := range 20 {
		fmt.Fprintln(w, i)
		http.NewResponseController(w).Flush()
		select {
		case <-s.ack(r.FormValue("id")):
		case <-r.Context().Done():
			return
		}
	}
}

// visitor is a client of a site.
type visitor struct {
	url    string
	client *http.Client
	major  int // the version of HTTP that is expected
}

// do makes a request and reads the answer.
func (v visitor) do(req *http.Request, err error) (*http.Response, []byte, error) {
	if err != nil {
		return nil, nil, err
	}
	resp, err := v.client.Do(req)
	if err != nil {
		return nil, nil, err
	}
	body, err := io.ReadAll(resp.Body)
	resp.Body.Close()
	if resp.ProtoMajor != v.major {
		err = errors.Join(err, fmt.Errorf("%s, want major version %d", resp.Proto, v.major))
	}
	return resp, body, err
}

// get wants an answer.
func (v visitor) get(path string, want []byte) error {
	_, got, err := v.do(http.NewRequest("GET", v.url+path, nil))
	if err == nil && !bytes.Equal(got, want) {
		err = fmt.Errorf("%s: %d bytes, want %d", path, len(got), len(want))
	}
	return err
}

// hash sends a body, of unknown length if reader hides what it is.
func (v visitor) hash(body []byte, reader io.Reader) error {
	req, err := http.NewRequest("POST", v.url+"/hash", reader)
	if err != nil {
		return err
	}
	sum := fmt.Sprintf("%x", sha256.Sum256(body))
	want := fmt.Sprintf("%d <nil> %s ", len(body), sum)
	if req.ContentLength <= 0 {
		req.Trailer = http.Header{"Sum": {sum}}
		want += sum
	}
	_, got, err := v.do(req, nil)
	if err == nil && string(got) != want {
		err = fmt.Errorf("%q, want %q", got, want)
	}
	return err
}

func (v visitor) visit(t *testing.T) {
	file := noise(1, fileSize)
	together(t, 64, func(i int) error {
		n := 1 + i*i*50
		return errors.Join(v.get(fmt.Sprint("/noise?n=", n), noise(uint64(n), n)), v.hash(file[:n], bytes.NewReader(file[:n])))
	})
	check(t, v.get("/file", file))
	check(t, v.hash(file, bytes.NewReader(file)))
	check(t, v.hash(file, io.MultiReader(bytes.NewReader(file))))
	together(t, 4, func(i int) error { return v.echo(file[:(i+1)<<19]) })
	v.ranges(t, file)
	together(t, 3, v.lines)
	v.leave(t)
	v.expect(t, file)
	if v.major == 1 {
		check(t, v.get("/hijack", file))
	}
	check(t, v.get("/noise?n=5", noise(5, 5)))
}

// echo reads what comes back while it still sends.
func (v visitor) echo(body []byte) error {
	pr, pw := io.Pipe()
	go func() {
		_, err := pw.Write(body)
		pw.CloseWithError(err)
	}()
	req, err := http.NewRequest("POST", v.url+"/echo", pr)
	if err != nil {
		return err
	}
	resp, got, err := v.do(req, nil)
	switch {
	case err != nil:
		return err
	case !bytes.Equal(got, body):
		return fmt.Errorf("echo: %d bytes, want %d", len(got), len(body))
	case resp.Trailer.Get("Sum") != fmt.Sprintf("%x", sha256.Sum256(body)):
		return fmt.Errorf("trailer: %v", resp.Trailer)
	}
	return nil
}

func (v visitor) ranges(t *testing.T, file []byte) {
	for _, r := range [][2]int{{0, 0}, {1000, 3_000_000}, {fileSize - 7, fileSize - 1}} {
		req, err := http.NewRequest("GET", v.url+"/file", nil)
		check(t, err)
		req.Header.Set("Range", fmt.Sprintf("bytes=%d-%d", r[0], r[1]))
		resp, got, err := v.do(req, nil)
		check(t, err)
		if resp.StatusCode != http.StatusPartialContent || !bytes.Equal(got, file[r[0]:r[1]+1]) {
			t.Errorf("%v: %s, %d bytes", r, resp.Status, len(got))
		}
	}
}

// lines asks for the next line when it has read one.
func (v visitor) lines(id int) error {
	resp, err := v.client.Get(fmt.Sprintf("%s/lines?id=%d", v.url, id))
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	n := 0
	for s := bufio.NewScanner(resp.Body); s.Scan(); n++ {
		if s.Text() != strconv.Itoa(n) {
			return fmt.Errorf("line %d is %q", n, s.Text())
		}
		if _, _, err := v.do(http.NewRequest("POST", fmt.Sprintf("%s/seen?id=%d", v.url, id), nil)); err != nil {
			return err
		}
	}
	if n != 20 {
		return fmt.Errorf("%d lines", n)
	}
	return nil
}

// leave ends a request that the server has not answered, which the server must notice.
func (v visitor) leave(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, "GET", v.url+"/hang", nil)
	check(t, err)
	left := make(chan error, 1)
	go func() {
		_, _, err := v.do(req, nil)
		left <- err
	}()
	check(t, v.get("/begun", []byte{}))
	cancel()
	if err := <-left; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	check(t, v.get("/gone", []byte{}))
}

// expect asks before it sends.
func (v visitor) expect(t *testing.T, file []byte) {
	for _, path := range []string{"/hash", "/refuse"} {
		asked := false
		trace := &httptrace.ClientTrace{Got100Continue: func() { asked = true }}
		req, err := http.NewRequestWithContext(httptrace.WithClientTrace(context.Background(), trace), "POST", v.url+path, bytes.NewReader(file))
		check(t, err)
		req.Header.Set("Expect", "100-continue")
		resp, got, err := v.do(req, nil)
		check(t, err)
		if path == "/hash" && (!asked || !strings.HasPrefix(string(got), strconv.Itoa(len(file)))) {
			t.Errorf("asked: %v; %q", asked, got)
		}
		if path == "/refuse" && resp.StatusCode != http.StatusRequestEntityTooLarge {
			t.Error(resp.Status)
		}
	}
}
