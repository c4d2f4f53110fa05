// Package lograte keeps warnings that strangers can cause, as often as they like, from filling a log.
package lograte

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

// interval is how often a Limiter lets a warning through.
const interval = 10 * time.Second

// Limiter is for warnings of one kind. The zero value is ready; it may be used by several goroutines.
type Limiter struct {
	mu   sync.Mutex
	next time.Time // not before is there a warning
	left int       // out since the last one
}

// Warn logs a warning; those within 10 s of the last one only for who asks for details, at Debug. The next warning says
// how many they were, as "left_out".
func (l *Limiter) Warn(log *slog.Logger, msg string, args ...any) {
	level := slog.LevelWarn
	l.mu.Lock()
	switch now := time.Now(); {
	case now.Before(l.next):
		level = slog.LevelDebug
		l.left++
	default:
		if l.left > 0 {
			args = append(args, "left_out", l.left)
		}
		l.next, l.left = now.Add(interval), 0
	}
	l.mu.Unlock()
	log.Log(context.Background(), level, msg, args...)
}
