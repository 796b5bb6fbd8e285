package simulator

import "slices"

// queue is the requests that wait, first come first served; a preempted one
// goes back to the front.
type queue struct {
	// items[head:] wait.
	items []*Request
	head  int
}

func (q *queue) len() int { return len(q.items) - q.head }

func (q *queue) front() *Request { return q.items[q.head] }

func (q *queue) pushBack(r *Request) {
	if q.head > len(q.items)/2 && len(q.items) == cap(q.items) {
		n := copy(q.items, q.items[q.head:])
		clear(q.items[n:])
		q.items, q.head = q.items[:n], 0
	}
	q.items = append(q.items, r)
}

func (q *queue) pushFront(r *Request) {
	if q.head == 0 {
		q.items = slices.Insert(q.items, 0, r)
		return
	}
	q.head--
	q.items[q.head] = r
}

func (q *queue) popFront() *Request {
	r := q.items[q.head]
	q.items[q.head] = nil
	q.head++
	if q.head == len(q.items) {
		q.items, q.head = q.items[:0], 0
	}
	return r
}

// remove takes a request out from wherever it is.
func (q *queue) remove(r *Request) {
	if i := slices.Index(q.items[q.head:], r); i >= 0 {
		q.items = slices.Delete(q.items, q.head+i, q.head+i+1)
	}
}
