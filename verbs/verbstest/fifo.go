package verbstest

// fifo is a queue that keeps its storage, and what its elements hold: an element is reused with all that it points to.
type fifo[T any] struct {
	buf  []T // a power of two
	head int
	n    int
}

func (q *fifo[T]) len() int { return q.n }

// at is the i-th element. It moves when the queue grows.
func (q *fifo[T]) at(i int) *T { return &q.buf[(q.head+i)&(len(q.buf)-1)] }

// add makes room for an element at the end and returns it as it was left.
func (q *fifo[T]) add() *T {
	if q.n == len(q.buf) {
		buf := make([]T, max(8, 2*len(q.buf)))
		copy(buf[copy(buf, q.buf[q.head:]):], q.buf[:q.head])
		q.buf, q.head = buf, 0
	}
	q.n++
	return q.at(q.n - 1)
}

// drop takes off the first n elements. They stay as they are until add returns them again.
func (q *fifo[T]) drop(n int) {
	q.n -= n
	if q.head += n; q.head >= len(q.buf) {
		q.head -= len(q.buf)
	}
}

// clear takes off all elements and lets go of the storage.
func (q *fifo[T]) clear() { *q = fifo[T]{} }
