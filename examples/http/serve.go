package main

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"io"
	"net/http"
	"os"
	"path"
	"strings"
	"sync"
	"time"

	"github.com/rconn/rdma/compat"
)

// serve serves dir until ctx ends, then lets requests in progress finish.
func serve(ctx context.Context, addr, dir string) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	lc := &compat.ListenConfig{Policy: policy}
	ln, err := lc.Listen(ctx, "tcp", addr)
	if err != nil {
		return err
	}
	fmt.Printf("serving %s on %v\n", dir, ln.Addr())
	srv := &http.Server{Handler: newFiles(root), ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 2 * time.Minute}
	done := make(chan error, 1)
	go func() {
		<-ctx.Done()
		sctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
		defer cancel()
		done <- srv.Shutdown(sctx)
	}()
	if err := srv.Serve(ln); err != http.ErrServerClosed {
		return err
	}
	return <-done
}

// files serves files as http.FileServer does, and tells besides what a client needs to go on with a part of one and to check it:
// an ETag, and on request the hash (Repr-Digest, RFC 9530).
type files struct {
	root *os.Root // links that lead out of the folder are not followed
	all  http.Handler

	mu     sync.Mutex
	hashes map[string]hashed // by name
}

// hashed is the hash of one version of a file.
type hashed struct {
	etag string
	sum  func() ([]byte, error)
}

func newFiles(root *os.Root) *files {
	return &files{root: root, all: http.FileServerFS(root.FS()), hashes: make(map[string]hashed)}
}

func (s *files) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	name := path.Clean("/" + r.URL.Path)[1:]
	switch info, err := s.root.Stat(name); {
	case err == nil && !info.IsDir() && !info.Mode().IsRegular():
		http.NotFound(w, r) // opening a pipe would wait for a writer
		return
	case err != nil, info.IsDir(), strings.HasSuffix(r.URL.Path, "/"):
		s.all.ServeHTTP(w, r) // folders, and errors
		return
	}
	file, err := s.root.Open(name)
	if err != nil {
		s.all.ServeHTTP(w, r)
		return
	}
	defer file.Close()
	info, err := file.Stat() // of the file that is sent, whatever has the name by now
	if err != nil {
		http.Error(w, "cannot be read", http.StatusInternalServerError)
		return
	}
	etag := fmt.Sprintf(`"%x-%x"`, info.ModTime().UnixNano(), info.Size())
	w.Header().Set("ETag", etag)
	if strings.Contains(r.Header.Get("Want-Repr-Digest"), "sha-256") {
		if sum, err := s.hash(name, etag, file, info.Size()); err == nil { // else the file is being changed; sending it will tell
			w.Header().Set("Repr-Digest", "sha-256=:"+base64.StdEncoding.EncodeToString(sum)+":")
		}
	}
	http.ServeContent(w, r, name, info.ModTime(), file)
}

// hash computes the hash of a file once for all requests, those of other connections too. It goes on when the client does not: it will
// ask again.
func (s *files) hash(name, etag string, file io.ReaderAt, size int64) ([]byte, error) {
	s.mu.Lock()
	h, ok := s.hashes[name]
	if !ok || h.etag != etag {
		h = hashed{etag, sync.OnceValues(func() ([]byte, error) {
			sum := sha256.New()
			n, err := io.Copy(sum, io.NewSectionReader(file, 0, size))
			if err == nil && n < size {
				err = io.ErrUnexpectedEOF
			}
			return sum.Sum(nil), err
		})}
		s.hashes[name] = h
	}
	s.mu.Unlock()
	sum, err := h.sum()
	if err != nil {
		s.mu.Lock()
		delete(s.hashes, name)
		s.mu.Unlock()
	}
	return sum, err
}
