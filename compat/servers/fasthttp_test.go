package servers

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"testing"
	"time"

	"github.com/valyala/fasthttp"
)

func TestFastHTTP(t *testing.T) {
	const idle = 200 * time.Millisecond // the library looks at what it no longer needs once in this time
	row{
		name: "fasthttp", modules: []string{"github.com/valyala/fasthttp"},
		does: "64 requests at once, 4 MiB each way, bodies as streams, 200 requests on one pipeline, Connection: close, Shutdown",
		serve: func(t *testing.T, ln net.Listener) {
			srv := &fasthttp.Server{Handler: fastEcho, MaxRequestBodySize: fileSize, StreamRequestBody: true, MaxIdleWorkerDuration: idle}
			served := make(chan error, 1)
			go func() { served <- srv.Serve(ln) }()
			t.Cleanup(func() { check(t, errors.Join(srv.Shutdown(), <-served)) })
		},
		use: func(t *testing.T, n *network) {
			dial := func(addr string) (net.Conn, error) { return n.Dial("tcp", addr) }
			client := &fasthttp.HostClient{Addr: n.addr, Dial: dial, MaxIdleConnDuration: idle}
			defer client.CloseIdleConnections()
			pipeline := &fasthttp.PipelineClient{Addr: n.addr, Dial: dial, MaxConns: 1, MaxIdleConnDuration: idle}
			file := noise(1, fileSize)
			together(t, 64, func(i int) error { return fastCall(client, file[:1+i*i*50], i) })
			together(t, 3, func(i int) error { return fastCall(client, file, i) })
			together(t, 200, func(i int) error { return fastCall(pipeline, file[:i], 0) })
		},
	}.run(t)
}

// fastEcho sends the body back, as a stream if the request was one.
func fastEcho(ctx *fasthttp.RequestCtx) {
	if ctx.QueryArgs().Has("close") {
		ctx.SetConnectionClose()
	}
	body, err := io.ReadAll(ctx.RequestBodyStream())
	if err != nil {
		ctx.Error(err.Error(), fasthttp.StatusBadRequest)
		return
	}
	if ctx.Request.Header.ContentLength() >= 0 {
		ctx.SetBody(body)
		return
	}
	ctx.SetBodyStreamWriter(func(w *bufio.Writer) {
		for len(body) > 0 {
			n := min(len(body), 10_000)
			w.Write(body[:n])
			if w.Flush() != nil {
				return
			}
			body = body[n:]
		}
	})
}

// fastCall sends a body: the second kind as a stream, the third on a connection that the server closes.
func fastCall(client interface {
	Do(*fasthttp.Request, *fasthttp.Response) error
}, body []byte, kind int) error {
	req, resp := fasthttp.AcquireRequest(), fasthttp.AcquireResponse()
	defer fasthttp.ReleaseRequest(req)
	defer fasthttp.ReleaseResponse(resp)
	req.Header.SetMethod("POST")
	req.SetRequestURI("http://server/")
	req.SetBody(body)
	switch kind % 3 {
	case 1:
		req.SetBodyStream(bytes.NewReader(body), -1)
	case 2:
		req.SetRequestURI("http://server/?close")
	}
	if err := client.Do(req, resp); err != nil {
		return err
	}
	if resp.StatusCode() != fasthttp.StatusOK || !bytes.Equal(resp.Body(), body) {
		return fmt.Errorf("status %d, %d bytes of %d", resp.StatusCode(), len(resp.Body()), len(body))
	}
	return nil
}
