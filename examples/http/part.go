package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"net/http"
	"os"
	"strings"
	"time"
)

// part is a file that is not there as a whole yet. It lies beside its target, with a note of what it is a part of, until it is
// complete; so the target is never half a file.
type part struct {
	target string
	file   *os.File
	hash   hash.Hash
	size   int64 // so many bytes are in the file, and in hash
	want   []byte
	bad    int // how often the hash was wrong
	note

	finished bool
}

// note is what has to be known to go on in another process.
type note struct {
	URL       string
	Validator string // for If-Range: ETag or Last-Modified. "": there is no going on
	Total     int64  // the size of the whole, -1: not known
}

const (
	partSuffix = ".part"
	noteSuffix = ".part.json"
)

// errClaimed says that two downloads would write to one part.
var errClaimed = errors.New("is being fetched already")

// errDiscarded says that the next attempt begins anew.
var errDiscarded = errors.New("what was there is of no use, from the start again")

// openPart takes up what an earlier run has left of url, or begins.
func openPart(url, target string) (*part, error) {
	if info, err := os.Stat(target); err == nil && !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is no ordinary file, which could be replaced: choose another name with -o", target)
	}
	file, err := claim(target + partSuffix)
	if err == errClaimed {
		return nil, fmt.Errorf("%s %w: wait for that, or choose another name with -o", target, err)
	}
	if err != nil {
		return nil, err
	}
	p := &part{target: target, file: file, hash: sha256.New()}
	text, err := os.ReadFile(target + noteSuffix)
	if err == nil && json.Unmarshal(text, &p.note) == nil && p.URL == url && p.Validator != "" {
		var had io.Reader = file
		if p.Total >= 0 {
			had = io.LimitReader(file, p.Total-1) // ask for one byte at least: there is no range of none
		}
		p.size, err = io.Copy(p.hash, had)
	} else {
		p.note, err = note{URL: url}, nil
	}
	if err == nil {
		err = file.Truncate(p.size)
	}
	if err != nil {
		file.Close()
		return nil, err
	}
	return p, nil
}

// headers asks for what is missing.
func (p *part) headers(h http.Header) {
	h.Set("Want-Repr-Digest", "sha-256=10")
	if p.size > 0 && p.Validator != "" {
		h.Set("Range", fmt.Sprintf("bytes=%d-", p.size))
		h.Set("If-Range", p.Validator) // the whole, if it has changed
	}
}

// begin makes ready for the body of a response.
func (p *part) begin(resp *http.Response) error {
	p.want = digest(resp.Header)
	if resp.StatusCode == http.StatusPartialContent {
		var from, to, total int64 = 0, 0, -1
		n, _ := fmt.Sscanf(resp.Header.Get("Content-Range"), "bytes %d-%d/%d", &from, &to, &total)
		if n < 2 || from != p.size || total != p.Total || validator(resp.Header) != p.Validator {
			return p.discard()
		}
		return nil
	}
	if err := p.discard(); err != errDiscarded {
		return err
	}
	p.Validator, p.Total = validator(resp.Header), resp.ContentLength
	return permanently(p.writeNote()) // the part is empty now: the note is never of other bytes than these
}

func (p *part) writeNote() error {
	text, err := json.Marshal(p.note)
	if err == nil {
		err = os.WriteFile(p.target+noteSuffix, text, 0o666)
	}
	return err
}

// discard forgets all bytes. Its error is errDiscarded, or why that cannot be.
func (p *part) discard() error {
	p.hash.Reset()
	p.size = 0
	_, err := p.file.Seek(0, io.SeekStart)
	if err = errors.Join(err, p.file.Truncate(0)); err != nil {
		return permanently(err)
	}
	return errDiscarded
}

func (p *part) Write(b []byte) (int, error) {
	n, err := p.file.Write(b)
	p.hash.Write(b[:n])
	p.size += int64(n)
	return n, permanently(err)
}

// check compares the whole with what the server said of it. A server may send less than was asked for (RFC 9110, section 15.3.7): the
// next attempt goes on there.
func (p *part) check() error {
	switch {
	case p.Total >= 0 && p.size < p.Total:
		return errors.New("the server sent a part of the rest")
	case p.Total >= 0 && p.size > p.Total:
		return p.discard()
	}
	if p.want == nil || bytes.Equal(p.want, p.hash.Sum(nil)) {
		return nil
	}
	got := p.hash.Sum(nil)
	if err := p.discard(); err != errDiscarded {
		return err
	}
	err := fmt.Errorf("the hash is %x, and %x at the server: changed while it was sent, or damaged", got, p.want)
	if p.bad++; p.bad == 3 {
		return permanently(err)
	}
	return err
}

// finish gives the whole its name. With that the part is free for another download of the target, so all else comes before.
func (p *part) finish() error {
	err := p.file.Sync()
	if err == nil {
		err = os.Remove(p.target + noteSuffix)
	}
	if err == nil {
		if err = os.Rename(p.target+partSuffix, p.target); err != nil {
			err = errors.Join(err, p.writeNote()) // the next run need not fetch it all again
		}
	}
	p.finished = err == nil
	return err
}

// close leaves the part for the next run, if there is anything.
func (p *part) close() {
	if p.size == 0 && !p.finished {
		_ = os.Remove(p.target + noteSuffix)
		_ = os.Remove(p.target + partSuffix)
	}
	_ = p.file.Close()
}

// validator tells one version of a file from all others: a strong ETag, or else a Last-Modified which is so old that a second change
// has another (RFC 9110, sections 8.8.1 and 8.8.2.2).
func validator(h http.Header) string {
	if etag := h.Get("ETag"); etag != "" && !strings.HasPrefix(etag, "W/") {
		return etag
	}
	modified, err := http.ParseTime(h.Get("Last-Modified"))
	now, nerr := http.ParseTime(h.Get("Date"))
	if err != nil || nerr != nil || now.Sub(modified) < time.Minute {
		return ""
	}
	return h.Get("Last-Modified")
}

// digest is the SHA-256 of the whole file in a Repr-Digest (RFC 9530), nil if there is none.
func digest(h http.Header) []byte {
	for member := range strings.SplitSeq(h.Get("Repr-Digest"), ",") {
		if text, ok := strings.CutPrefix(strings.TrimSpace(member), "sha-256=:"); ok {
			sum, err := base64.StdEncoding.DecodeString(strings.TrimSuffix(text, ":"))
			if err == nil && len(sum) == sha256.Size {
				return sum
			}
		}
	}
	return nil
}
