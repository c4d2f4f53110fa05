// Package progress tells how far long transfers are: by a bar for each and one for all on a terminal, by a line now and then elsewhere.
package progress

import (
	"bytes"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"
)

const (
	onTerminal = 100 * time.Millisecond
	elsewhere  = 500 * time.Millisecond

	most = 16 // bars on a terminal: more may not have room
)

// Display draws the bars of some transfers. Its methods and those of its bars may be called from several goroutines.
type Display struct {
	out      io.Writer
	columns  func() int // of the terminal; 0: there is none
	files    int
	stop     chan struct{}
	stopped  chan struct{}
	stopOnce sync.Once

	mu       sync.Mutex
	bars     []*Bar
	all      meter // all bars together
	finished int
	drawn    int // lines on the screen that are drawn over
}

// New makes a display for a number of files. Close it: until then it draws.
func New(out io.Writer, files int) *Display {
	return newDisplay(out, files, func() int { return columns(out) }) // asked each time: windows change
}

func newDisplay(out io.Writer, files int, columns func() int) *Display {
	d := &Display{out: out, files: files, columns: columns, stop: make(chan struct{}), stopped: make(chan struct{})}
	d.all.last = time.Now()
	interval := elsewhere
	if columns() > 0 {
		interval = onTerminal
	}
	go d.run(interval)
	return d
}

func (d *Display) run(interval time.Duration) {
	defer close(d.stopped)
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		select {
		case now := <-tick.C:
			d.mu.Lock()
			moved := d.all.tick(now)
			for _, b := range d.bars {
				b.meter.tick(now)
			}
			if d.columns() > 0 {
				d.draw(nil)
			} else if moved && len(d.bars) > 0 {
				fmt.Fprintln(d.out, d.line())
			}
			d.mu.Unlock()
		case <-d.stop:
			return
		}
	}
}

// Close ends drawing, and takes the bars away.
func (d *Display) Close() {
	d.stopOnce.Do(func() { close(d.stop) })
	<-d.stopped
	d.mu.Lock()
	defer d.mu.Unlock()
	d.bars = nil
	d.finished = d.files
	d.draw(nil)
}

// Printf prints lines that stay, above the bars.
func (d *Display) Printf(format string, args ...any) { _, _ = fmt.Fprintf(d, format+"\n", args...) }

// Write prints lines that stay, above the bars, so that a log can go there. It fails never.
func (d *Display) Write(lines []byte) (int, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for line := range bytes.Lines(lines) {
		d.draw([]string{printable(strings.TrimSuffix(string(line), "\n"))})
	}
	return len(lines), nil
}

// draw prints lines that stay, and below them the bars if this is a terminal.
func (d *Display) draw(stay []string) {
	var buf bytes.Buffer
	if d.drawn > 0 {
		fmt.Fprintf(&buf, "\x1b[%dA\r\x1b[J", d.drawn) // up, to the first column, clear what is below
	}
	for _, line := range stay {
		fmt.Fprintln(&buf, line)
	}
	d.drawn = 0
	if width := d.columns(); width > 0 && d.finished < d.files {
		shown := d.bars[:min(len(d.bars), most)]
		for _, b := range shown {
			fmt.Fprintln(&buf, b.meter.bar(b.name, b.remark, width))
		}
		d.drawn = len(shown)
		if d.files > 1 {
			fmt.Fprintln(&buf, d.all.bar(fmt.Sprintf("%d of %d files", d.finished, d.files), "", width))
			d.drawn++
		}
	}
	_, _ = d.out.Write(buf.Bytes())
}

// line says how far all is, where there is no terminal.
func (d *Display) line() string {
	if d.files > 1 {
		return fmt.Sprintf("%d of %d files, %v", d.finished, d.files, &d.all)
	}
	return d.all.String()
}

// Bar is one transfer.
type Bar struct {
	d      *Display
	name   string
	meter  meter
	remark string
}

// Add shows one more transfer.
func (d *Display) Add(name string) *Bar {
	d.mu.Lock()
	defer d.mu.Unlock()
	b := &Bar{d: d, name: printable(name), meter: meter{last: time.Now()}}
	d.bars = append(d.bars, b)
	return b
}

// Start says how many bytes are there already, and how many it will be; below 0: not known. It may be called again.
func (b *Bar) Start(done, total int64) {
	b.d.mu.Lock()
	defer b.d.mu.Unlock()
	total = max(total, 0)
	b.d.all.skip(done-b.meter.done, total-b.meter.total)
	b.meter.skip(done-b.meter.done, total-b.meter.total)
	b.remark = ""
}

// Write counts bytes. It fails never.
func (b *Bar) Write(data []byte) (int, error) {
	b.d.mu.Lock()
	defer b.d.mu.Unlock()
	b.meter.done += int64(len(data))
	b.d.all.done += int64(len(data))
	return len(data), nil
}

// Say shows a remark beside the bar until Start, or as a line where there is no terminal.
func (b *Bar) Say(remark string) {
	remark = printable(remark)
	b.d.mu.Lock()
	b.remark = remark
	terminal := b.d.columns() > 0
	b.d.mu.Unlock()
	if !terminal {
		b.d.Printf("%s: %s", b.name, remark)
	}
}

// Close takes the bar away. What it counted remains in that of all files.
func (b *Bar) Close() {
	b.d.mu.Lock()
	defer b.d.mu.Unlock()
	for i, other := range b.d.bars {
		if other == b {
			b.d.bars = append(b.d.bars[:i:i], b.d.bars[i+1:]...)
			b.d.finished++
		}
	}
}
