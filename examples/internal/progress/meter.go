package progress

import (
	"fmt"
	"strings"
	"time"
	"unicode"
)

// meter counts bytes and knows how fast they come.
type meter struct {
	done, total int64 // total 0: not known
	rate        float64
	seen        int64 // done at the last tick
	last        time.Time
}

// skip counts bytes that are no part of the rate.
func (m *meter) skip(done, total int64) {
	m.done += done
	m.seen += done
	m.total += total
}

// tick brings the rate up to date: that of the last seconds, the latest counting most. moved: there is something new.
func (m *meter) tick(now time.Time) (moved bool) {
	took := now.Sub(m.last).Seconds()
	if took <= 0 {
		return false
	}
	latest := float64(m.done-m.seen) / took
	if m.rate == 0 {
		m.rate = latest
	} else {
		m.rate += (latest - m.rate) * min(took, 1) / 2
	}
	moved = m.done != m.seen
	m.seen, m.last = m.done, now
	return moved
}

func (m *meter) String() string {
	s := bytesText(float64(m.done))
	if m.total > 0 {
		s += fmt.Sprintf(" of %s (%d%%)", bytesText(float64(m.total)), m.percent())
	}
	return s + ", " + bytesText(m.rate) + "/s"
}

func (m *meter) percent() int64 { return min(int64(float64(m.done)*100/float64(m.total)), 100) }

// left is how long the rest will take, in words.
func (m *meter) left() string {
	if m.total <= m.done || m.rate < 1 {
		return ""
	}
	rest := time.Duration(min(float64(m.total-m.done)/m.rate, 360000)) * time.Second
	return fmt.Sprintf(", %v left", rest)
}

// bar is one line that is shorter than width: name, bar, numbers and a remark, as much of it as there is room for.
func (m *meter) bar(name, remark string, width int) string {
	numbers := " " + m.String()
	if remark != "" {
		numbers += ", " + remark
	} else {
		numbers += m.left()
	}
	name = fit(name, max(8, width/5))
	if room := width / 8; m.total > 0 && room >= 5 {
		full := int(int64(room) * m.percent() / 100)
		name += " [" + strings.Repeat("=", full) + strings.Repeat(" ", room-full) + "]"
	}
	return clip(name+numbers, width-1)
}

// bytesText is a number of bytes for people.
func bytesText(n float64) string {
	units := []string{"B", "KiB", "MiB", "GiB", "TiB"}
	i := 0
	for n >= 1023.95 && i < len(units)-1 { // which would be printed as 1024.0
		n /= 1024
		i++
	}
	if i == 0 {
		return fmt.Sprintf("%.0f B", n)
	}
	return fmt.Sprintf("%.1f %s", n, units[i])
}

// printable is text without what would move the cursor or change colours: names and errors come from servers.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return '?'
	}, s)
}

// runeWidth is the number of columns of a character, rather too many than too few: a line that wraps spoils the screen.
func runeWidth(r rune) int {
	if r >= 0x1100 {
		return 2
	}
	return 1
}

func textWidth(s string) (n int) {
	for _, r := range s {
		n += runeWidth(r)
	}
	return n
}

// clip is as much of s as has room in width.
func clip(s string, width int) string {
	for i, r := range s {
		if width -= runeWidth(r); width < 0 {
			return s[:i]
		}
	}
	return s
}

// fit is s in exactly width columns.
func fit(s string, width int) string {
	if textWidth(s) > width {
		s = clip(s, width-1) + "~"
	}
	return s + strings.Repeat(" ", width-textWidth(s))
}
