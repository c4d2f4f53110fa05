package compat

import (
	"net/http"
	"time"
)

// forHTTP is what Transport without a Dialer uses. The limit is that of http.DefaultTransport.
var forHTTP = Dialer{Timeout: 30 * time.Second}

// Transport is a copy of http.DefaultTransport, with its proxy, limits and TLS configuration, that dials with d; nil is a Dialer with a
// Timeout of 30 s. TLS runs on what d dials. If somebody has given http.DefaultTransport a DialTLSContext or DialTLS, HTTPS is still
// dialed by that, which may check what must not be left out: set the field to nil to have HTTPS dialed by d.
//
//	http.DefaultTransport = compat.Transport(nil) // all of http.Get and http.Client{}
func Transport(d *Dialer) *http.Transport {
	if d == nil {
		d = &forHTTP
	}
	t := &http.Transport{
		Proxy: http.ProxyFromEnvironment, ForceAttemptHTTP2: true, MaxIdleConns: 100, IdleConnTimeout: 90 * time.Second,
		TLSHandshakeTimeout: 10 * time.Second, ExpectContinueTimeout: time.Second,
	}
	if std, ok := http.DefaultTransport.(*http.Transport); ok {
		t = std.Clone()
	}
	t.DialContext = d.DialContext
	return t
}

// ListenAndServe is http.ListenAndServe on a Listener.
func ListenAndServe(addr string, handler http.Handler) error {
	ln, err := Listen("tcp", orPort(addr, ":http"))
	if err != nil {
		return err
	}
	defer ln.Close()
	return http.Serve(ln, handler)
}

// ListenAndServeTLS is http.ListenAndServeTLS on a Listener.
func ListenAndServeTLS(addr, certFile, keyFile string, handler http.Handler) error {
	ln, err := Listen("tcp", orPort(addr, ":https"))
	if err != nil {
		return err
	}
	defer ln.Close()
	return http.ServeTLS(ln, handler, certFile, keyFile)
}

// orPort is addr, or all of this host's addresses with the usual port.
func orPort(addr, usual string) string {
	if addr == "" {
		return usual
	}
	return addr
}
