package engine

import (
	"strings"
	"time"
)

// locator says which page to ask for. Where the type of engine is not given,
// the page of an engine whose /metrics is a queue comes first, so that nobody
// else's reader of that queue loses anything; who has no such page is asked for /metrics.
type locator struct {
	// first is empty when there is no choice.
	first, second string
	// found is the page that gave a reading last.
	found string
	// absent tells that the first page is not there.
	absent bool
	// queueUntil is until when the second page, which turned out to be a queue, is left alone.
	queueUntil time.Time
}

// newLocator chooses between /metrics below base and the page of the first table with a queue.
func newLocator(tables []*table, base, page string) locator {
	l := locator{second: page}
	for _, t := range tables {
		if t.queuePath != "" && strings.HasSuffix(page, t.queuePath) {
			l.first = base + t.metricsPath
			break
		}
	}
	return l
}

// pages returns what to ask for now, in this order, while learn wants more.
func (l *locator) pages(now time.Time) []string {
	switch {
	case l.first == "":
		return []string{l.second}
	case l.found != "":
		return []string{l.found}
	case l.queue(now):
		return []string{l.first}
	case l.absent:
		return []string{l.second}
	default:
		return []string{l.first, l.second}
	}
}

// queue tells that the only page there is one that may not be read.
func (l *locator) queue(now time.Time) bool { return l.found == "" && now.Before(l.queueUntil) }

// learn takes the outcome of asking for a page; true to ask for the next one at once.
func (l *locator) learn(page string, f *Failure, now time.Time) bool {
	switch {
	case l.first == "":
		return false
	case f == nil:
		l.found, l.queueUntil = page, time.Time{}
		return false
	case f.page, f.Reason == reasonIncomplete: // it is a metrics page; an engine that did nothing yet may have nothing on it
		return false
	case f.gone: // what comes back may be another engine
		*l = locator{first: l.first, second: l.second}
		return false
	case page == l.second && f.json && l.found == "": // known to give metrics, it is no queue
		l.found, l.absent, l.queueUntil = "", false, now.Add(lastRetry)
		return false
	case l.found != "":
		if f.Reason == "http_404" {
			l.found, l.absent = "", false
		}
		return false
	case page == l.second:
		return false
	case f.Reason == "timeout": // some proxies let unknown pages wait
		l.absent = true
		return false
	case f.Transient:
		return false
	default:
		// Who is not ready yet says so on every page.
		l.absent = f.Reason != "http_503"
		return true
	}
}
