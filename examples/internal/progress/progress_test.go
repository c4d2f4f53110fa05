package progress

import (
	"bytes"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// screen takes what is printed.
type screen struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (s *screen) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.buf.Write(b)
}

// take returns what came since it was called the last time.
func (s *screen) take() string {
	synctest.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	defer s.buf.Reset()
	return s.buf.String()
}

func (s *screen) display(files, columns int) *Display {
	return newDisplay(s, files, func() int { return columns })
}

func write(t *testing.T, b *Bar, n int) {
	t.Helper()
	got, err := b.Write(make([]byte, n))
	require.NoError(t, err)
	require.Equal(t, n, got)
}

func TestLinesOfOneFile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s screen
		d := s.display(1, 0)
		defer d.Close()
		b := d.Add("a")
		b.Start(1<<20, 8<<20) // what is there already is no part of the rate
		write(t, b, 2<<20)
		time.Sleep(elsewhere)
		require.Equal(t, "3.0 MiB of 8.0 MiB (37%), 4.0 MiB/s\n", s.take())
		time.Sleep(10 * elsewhere)
		require.Empty(t, s.take(), "nothing came")
		b.Say("again in 1s: \x1b[2Jbroken\n")
		require.Equal(t, "a: again in 1s: ?[2Jbroken?\n", s.take())
		b.Start(0, -1)
		write(t, b, 1000)
		time.Sleep(elsewhere)
		require.Regexp(t, `^1000 B, \S+ [KM]iB/s\n$`, s.take())
		b.Close()
		d.Close()
		require.Empty(t, s.take())
	})
}

func TestLinesOfSeveralFiles(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s screen
		d := s.display(3, 0)
		defer d.Close()
		a, b := d.Add("a"), d.Add("b")
		a.Start(0, 1<<20)
		b.Start(0, 3<<20)
		write(t, a, 1<<20)
		write(t, b, 1<<20)
		time.Sleep(elsewhere)
		require.Equal(t, "0 of 3 files, 2.0 MiB of 4.0 MiB (50%), 4.0 MiB/s\n", s.take())
		a.Close()
		a.Close()
		write(t, b, 1<<20)
		time.Sleep(elsewhere)
		require.Equal(t, "1 of 3 files, 3.0 MiB of 4.0 MiB (75%), 3.5 MiB/s\n", s.take())
		d.Printf("done: %s", "a")
		require.Equal(t, "done: a\n", s.take())
		d.Close()
		d.Close()
	})
}

func TestBars(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s screen
		d := s.display(2, 80)
		defer d.Close()
		a, b := d.Add("first"), d.Add("second")
		a.Start(0, 4000)
		b.Start(500, 1000)
		write(t, a, 1000)
		time.Sleep(onTerminal)
		require.Equal(t, ""+
			"first            [==        ] 1000 B of 3.9 KiB (25%), 9.8 KiB/s, 0s left\n"+
			"second           [=====     ] 500 B of 1000 B (50%), 0 B/s\n"+
			"0 of 2 files     [===       ] 1.5 KiB of 4.9 KiB (30%), 9.8 KiB/s, 0s left\n", s.take())

		b.Say("again")
		time.Sleep(onTerminal)
		drawn := s.take()
		require.True(t, strings.HasPrefix(drawn, "\x1b[3A\r\x1b[J"), "over the three: %q", drawn)
		require.Contains(t, drawn, "(50%), 0 B/s, again\n")

		a.Close()
		d.Printf("first is done")
		require.Regexp(t, "^\x1b\\[3A\r\x1b\\[Jfirst is done\nsecond .*\n1 of 2 files .*\n$", s.take())
		b.Close()
		d.Close()
		require.Equal(t, "\x1b[2A\r\x1b[J", s.take(), "no bar is left")
	})
}

// No line is as wide as the terminal, whatever it says.
func TestWidth(t *testing.T) {
	for width := range 200 {
		m := meter{done: 123456789, total: 987654321, rate: 1e6}
		for _, name := range []string{"a", strings.Repeat("long", 20), strings.Repeat("漢", 50)} {
			for _, remark := range []string{"", "again in 1s: connection reset by peer"} {
				line := m.bar(name, remark, width)
				require.LessOrEqual(t, textWidth(line), max(width-1, 0), line)
			}
		}
	}
}

func TestBytesText(t *testing.T) {
	for n, want := range map[float64]string{
		0: "0 B", 1023: "1023 B", 1024: "1.0 KiB", 1<<20 - 1: "1.0 MiB", 1536 << 20: "1.5 GiB", 1 << 50: "1024.0 TiB",
	} {
		require.Equal(t, want, bytesText(n))
	}
}

func TestNoTerminal(t *testing.T) {
	require.Zero(t, columns(&bytes.Buffer{}))
}

// What came last is not told when the file's own line has been printed.
func TestNoLineAfterTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s screen
		d := s.display(1, 0)
		defer d.Close()
		b := d.Add("a")
		b.Start(0, 10)
		write(t, b, 10)
		b.Close()
		time.Sleep(10 * elsewhere)
		require.Empty(t, s.take())
	})
}
